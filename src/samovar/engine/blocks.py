"""The pool of KV blocks: ids and reference counts, nothing of their contents."""

from __future__ import annotations

BLOCK_TOKENS = 32


def blocks_for(num_tokens: int) -> int:
    """Number of blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockPool:
    """Hands out block ids and takes them back.  Engine thread only.

    Lowest ids first, so that the memory of a lightly used pool stays small.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._taken = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` blocks; the caller has made sure that so many are free."""
        assert count <= len(self._free), "take() beyond the free blocks"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._taken[block] = 1
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            assert self._taken[block], f"block {block} was given back twice"
            self._taken[block] = 0
            self._free.append(block)

    def check(self, held: list[int]) -> None:
        """Asserts that exactly the blocks of `held` are out, each with one holder."""
        assert len(set(held)) == len(held), "a block has two holders"
        assert sorted(held + self._free) == list(range(self.num_blocks)), "a block was lost"
