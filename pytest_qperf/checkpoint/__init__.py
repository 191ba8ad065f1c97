"""Checkpoint files: shapes, number formats, reading and writing, seeded synthetic weights."""
