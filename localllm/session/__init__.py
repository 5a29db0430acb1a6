"""Conversations: what was said, what fits, what is kept. Knows no terminal."""
