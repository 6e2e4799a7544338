"""A vocabulary for a decoder whose weights mean nothing: words that look like some language.

number, seed  --make_words-->  tuple of different words; some end a sentence
"""

from __future__ import annotations

from random import Random

_BEGINS = ["b", "c", "d", "f", "l", "m", "n", "p", "qu", "r", "s", "st", "t", "tr", "v"]
_MIDDLES = ["a", "e", "i", "o", "u", "ae", "ia"]
_ENDS = ["", "", "", "m", "n", "r", "s", "t"]
_LENGTHS = (1, 2, 2, 2, 3, 3)
#: One word of so many ends a sentence, and so many a part of one.
_SENTENCE, _PART = 14, 9


def make_words(number: int, seed: int) -> tuple[str, ...]:
    """The same words at every call."""
    random = Random(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        parts = range(random.choice(_LENGTHS))
        syllables = (random.choice(_BEGINS) + random.choice(_MIDDLES) for _ in parts)
        found["".join(syllables) + random.choice(_ENDS)] = None
    return tuple(word + _mark(i) for i, word in enumerate(found))


def _mark(i: int) -> str:
    return "." if i % _SENTENCE == 0 else "," if i % _PART == 0 else ""
