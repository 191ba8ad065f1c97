"""Renderers: a gate's result in, text out."""
