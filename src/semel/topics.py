"""What the compiler and the plans tell of their work, through `logging`.

    SEMEL_LOG=schedule,cache  -->  lines on stderr, or wherever the program logs to

A topic is the logger `semel.<topic>`. It speaks if the settings name it (or say `all`), or if the
program has turned its level down to DEBUG. What it says goes to the handlers that the program
has; where there are none, to stderr. Nothing is set up and no logger is changed, so that a
program's own arrangements hold and a setting works for as long as it is in force.

Nothing speaks on the way of an `execute()` whose sizes fit: topics cost prepares and growths less
than a microsecond while they are silent. Warnings are another matter: they are always given.
"""

from __future__ import annotations

import logging
import sys

from semel.config import LOG_TOPICS, settings

_FORMAT = logging.Formatter("%(name)s: %(message)s")


class Topic:
    """Something to tell about; call it like `logging.debug`."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        assert name in LOG_TOPICS, name
        self._name = name
        self._logger = logging.getLogger(f"semel.{name}")

    @property
    def is_on(self) -> bool:
        """Whether anybody listens; ask before making long texts."""
        return self._is_asked or self._logger.isEnabledFor(logging.DEBUG)

    @property
    def _is_asked(self) -> bool:
        asked = settings().log
        return bool(asked) and (self._name in asked or "all" in asked)

    def __call__(self, message: str, *values: object) -> None:
        """Tell it, with `values` in the places of the message; silent unless `is_on`."""
        if not self.is_on:
            return
        logger, caller = self._logger, sys._getframe(1)
        record = logger.makeRecord(
            logger.name,
            logging.DEBUG,
            caller.f_code.co_filename,
            caller.f_lineno,
            message,
            values,
            exc_info=None,
            func=caller.f_code.co_name,
        )
        if logger.hasHandlers():
            logger.handle(record)
        elif not logger.disabled and logger.filter(record):
            handler = logging.StreamHandler()  # to what stderr is now
            handler.setFormatter(_FORMAT)
            handler.handle(record)

    def warning(self, message: str, *values: object) -> None:
        """What a user should know without having asked."""
        self._logger.warning(message, *values)
