"""The commands: each parses, calls, and sets the exit code; ``main`` reports what goes wrong."""
