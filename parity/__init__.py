"""The harness: any attention implementation against a float64 oracle. Importing it imports no framework."""

from parity.subjects.plugin import subject

__all__ = ["subject"]
