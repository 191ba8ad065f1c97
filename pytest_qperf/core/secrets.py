"""Which environment variables are not written into results: known by their names."""

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
REDACTED = "<redacted>"


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name may hold a secret."""
    return any(word in name.upper() for word in SECRET_WORDS)
