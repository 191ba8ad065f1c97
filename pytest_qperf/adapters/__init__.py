"""The impure edge: each module talks to one thing outside this process."""
