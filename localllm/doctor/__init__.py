"""What ``localllm doctor`` looks at: each module checks one part of what localllm stands on, and says what to do."""
