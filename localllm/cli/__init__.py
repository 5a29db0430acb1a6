"""The commands: each parses, calls, and sets the exit code. The only place that catches LocalLLMError."""
