"""Where a text may be cut so that its two sides, tokenised apart, give the ids of the whole.

That holds at the edge of an added token: the tokenizer cuts those out of the text before it looks at anything else, so
nothing on one side can merge with the other. Unless the token swallows whitespace beyond its edge (lstrip, rstrip) or
asks what stands beside it (single_word), or a longer added token lies across the seam.
"""

from collections.abc import Mapping

from tokenizers import AddedToken


class Seams:
    def __init__(self, added: Mapping[str, AddedToken]) -> None:
        usable = [token for token in added.values() if not token.single_word]
        self._ends = tuple(token.content for token in usable if not token.rstrip)
        self._starts = tuple(token.content for token in usable if not token.lstrip)
        self._right_eaters = tuple(token.content for token in added.values() if token.rstrip)
        self._left_eaters = tuple(token.content for token in added.values() if token.lstrip)
        self._added = tuple(added)
        self._reach = max(map(len, added), default=1) - 1  # how far from the seam a token across it can begin

    def is_seam(self, left: str, right: str) -> bool:
        """Whether `left` and `right` may be tokenised apart. Looks at the ends that meet, not at the whole texts."""
        if not left.endswith(self._ends) and not right.startswith(self._starts):
            return False
        if self._right_eaters and left.rstrip().endswith(self._right_eaters):
            return False
        if self._left_eaters and right.lstrip().startswith(self._left_eaters):
            return False
        return not self._is_straddled(left[len(left) - min(self._reach, len(left)) :], right[: self._reach])

    def _is_straddled(self, left: str, right: str) -> bool:
        around = left + right
        for token in self._added:
            if 0 <= around.find(token, max(len(left) - len(token) + 1, 0)) < len(left):
                return True
        return False
