"""Cached prefixes: a trie of KV blocks, shared by all sequences."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from samovar.engine.blocks import BLOCK_TOKENS, BlockPool
from samovar.engine.disk import DiskTier


class Node:
    """One block of a cached prefix; the path from the root is the exact tokens before it.

    tokens: those whose KV the block holds, from its first slot on; BLOCK_TOKENS at most.
    holders: running sequences whose prefix goes through here.  A sequence holds the whole path,
    so a node without holders has no held descendant.
    """

    __slots__ = ("block", "children", "holders", "key", "parent", "tokens", "used_at")

    def __init__(
        self, parent: Node | None, tokens: tuple[int, ...], block: int, key: bytes = b""
    ) -> None:
        self.key = key  # its name in the tier on disk
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[tuple[int, ...], Node] = {}
        self.holders = 0
        self.used_at = 0


class PrefixTree:
    """Tries of token blocks, one for each owner; every block in it belongs to the tree.

    A block is free, or private to one sequence, or a node here, so blocks need no reference counts.
    Nodes that nobody holds leave, least recently used leaf first, when a block is needed.
    Engine thread only.
    """

    def __init__(self, pool: BlockPool, disk: DiskTier | None = None) -> None:
        self._pool = pool
        self._disk = disk
        self._roots: dict[str, Node] = {}
        self._leaving: list[tuple[int, int, Node]] = []  # heap of candidates, checked when popped
        self._ties = itertools.count()
        self._clock = 0
        self.num_idle = 0
        self.num_nodes = 0

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give: the free ones and those of nodes that nobody holds."""
        return self._pool.num_free + self.num_idle

    def root(self, owner: str) -> Node:
        """Where the prefixes of `owner` begin; owners never see each other's blocks."""
        root = self._roots.get(owner)
        if root is None:
            key = b"" if self._disk is None else self._disk.root(owner)
            root = self._roots[owner] = Node(None, (), -1, key)
        return root

    def child(self, node: Node, tokens: Sequence[int], start: int) -> Node | None:
        """The node of tokens[start : start + BLOCK_TOKENS] after `node`, which is held."""
        block_tokens = tuple(tokens[start : start + BLOCK_TOKENS])
        known = node.children.get(block_tokens)
        if known is None and self._disk is not None:
            known = self._load(self._disk, node, block_tokens)
        return known

    def best_partial(self, node: Node, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """The child that begins with most of `tokens`, and how many: no more than a block has."""
        best, best_count = None, 0
        for child in node.children.values():
            count = 0
            for ours, theirs in zip(tokens, child.tokens, strict=False):
                if ours != theirs:
                    break
                count += 1
            if count > best_count:
                best, best_count = child, count
        return best, best_count

    def hold(self, node: Node) -> None:
        """Notes one more sequence on a node whose parent that sequence holds already."""
        self.num_idle -= node.holders == 0
        node.holders += 1

    def release(self, nodes: Sequence[Node]) -> None:
        """Takes one sequence off its path, given from the root outwards."""
        self._clock += 1
        for node in reversed(nodes):  # a leaf is a candidate before its parent can be
            node.holders -= 1
            node.used_at = self._clock
            if node.holders == 0:
                self.num_idle += 1
                self._consider(node)

    def insert(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """The node of a block in which `tokens` are computed, held once more.

        Takes `block` back if the node is known.
        """
        known = parent.children.get(tokens)
        if known is None:
            known = self._add(parent, tokens, block)
            known.holders = 1
            if self._disk is not None and len(tokens) == BLOCK_TOKENS:
                self._disk.store(known.key, tokens, block)
        else:
            self._pool.give_back([block])  # the same tokens after the same tokens: the same bits
            self.hold(known)
        return known

    def take(self, count: int) -> list[int]:
        """`count` private blocks, at most num_available; evicts what nobody holds."""
        assert count <= self.num_available, "take() beyond the blocks that can be had"
        while self._pool.num_free < count:
            self._evict_one()
        return self._pool.take(count)

    def forget(self) -> None:
        """Evicts every node that nobody holds."""
        while self.num_idle:
            self._evict_one()

    def give_back(self, blocks: list[int]) -> None:
        """Takes private blocks back."""
        self._pool.give_back(blocks)

    def check(self, private: list[int]) -> None:
        """Asserts that the free, the `private` and the cached blocks are all blocks, each once."""
        nodes: list[Node] = []
        stack = list(self._roots.values())
        while stack:
            children = list(stack.pop().children.values())
            nodes += children
            stack += children
        self._pool.check([node.block for node in nodes] + private)
        assert len(nodes) == self.num_nodes
        assert sum(not node.holders for node in nodes) == self.num_idle
        assert all(node.holders >= sum(c.holders for c in node.children.values()) for node in nodes)

    def _add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        assert 0 < len(tokens) <= BLOCK_TOKENS, "a block cannot hold the KV of these tokens"
        key = b"" if self._disk is None else self._disk.child(parent.key, tokens)
        node = parent.children[tokens] = Node(parent, tokens, block, key)
        self.num_nodes += 1
        return node

    def _load(self, disk: DiskTier, parent: Node, tokens: tuple[int, ...]) -> Node | None:
        key = disk.child(parent.key, tokens)
        if not disk.has(key) or not self.num_available:
            return None
        (block,) = self.take(1)
        if not disk.load(key, tokens, block):
            self._pool.give_back([block])
            return None
        node = self._add(parent, tokens, block)
        node.used_at = self._clock
        self.num_idle += 1
        self._consider(node)
        return node

    def _consider(self, node: Node) -> None:
        if node.block >= 0 and not node.holders and not node.children:
            heapq.heappush(self._leaving, (node.used_at, next(self._ties), node))

    def _evict_one(self) -> None:
        while True:
            used_at, _, node = heapq.heappop(self._leaving)
            # An entry is stale when the node was held again, got children, or has left already.
            if node.parent is None or node.holders or node.children or node.used_at != used_at:
                continue
            parent = node.parent
            del parent.children[node.tokens]
            node.parent = None
            self.num_idle -= 1
            self.num_nodes -= 1
            self._pool.give_back([node.block])
            self._consider(parent)
            return
