"""What the plan runner is known by, for who has its code and need not write its text.

    arch  --RUNNER_KEYS-->  the SHA-256 of emit_runner(arch)

To write the text takes longer than to load what was made of it, and every process needs the runner.
So the keys stand here. Whoever compiles a runner looks whether they are still right
(`checked_text`), and a test does: a change of the runner's text is a change here.
"""

from __future__ import annotations

from hashlib import sha256

from semel.errors import InternalError

RUNNER_KEYS = {
    "x86_64": "578417d59f2458adaa28818bd18f1f5358db4b39b251380c8b696bb4a46b8051",
    "aarch64": "cf61e170fc4c77c8b9550306534a4c7ae44e2bbf8f8b8c1bab8088439ac6cab8",
}


def checked_text(arch: str, text: str) -> str:
    """The text of a runner, if its key is the one that it is known by."""
    key = sha256(text.encode()).hexdigest()
    if key != RUNNER_KEYS[arch]:
        message = f"RUNNER_KEYS in {__name__} must have {key!r} for {arch}: its text changed."
        raise InternalError("runner", message)
    return text
