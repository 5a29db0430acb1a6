"""The engine: one turn of a conversation on one model, as a stream of events."""
