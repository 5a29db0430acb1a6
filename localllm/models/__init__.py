"""Models on disk and in the catalog: what exists, what a file holds, and how to get it."""
