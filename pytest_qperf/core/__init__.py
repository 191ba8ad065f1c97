"""Pure code: no files, no network, no clock, no processes, no pytest."""
