"""What a person sees and types. Consumes events; computes nothing about models."""
