"""What hardware allows: the arithmetic, the table of devices, and this machine measured.

Knows bytes, bandwidth and memory sizes. Knows nothing of how a model is run; of a model it takes byte counts
only.
"""
