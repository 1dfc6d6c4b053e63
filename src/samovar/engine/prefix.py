"""Cached prefixes: a trie of KV blocks, shared by all sequences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from samovar.engine.blocks import BLOCK_TOKENS, BlockPool
from samovar.engine.disk import CachedBlock, DiskTier


class Node:
    """One block of a cached prefix; the path from the root is the exact tokens before it.

    tokens: those whose KV the block holds, from its first slot on; BLOCK_TOKENS at most.
    holders: running sequences whose prefix goes through here.  A sequence holds the whole path,
    so a node without holders has no held descendant.
    """

    __slots__ = ("block", "children", "holders", "key", "parent", "tokens")

    def __init__(
        self, parent: Node | None, tokens: tuple[int, ...], block: int, key: bytes = b""
    ) -> None:
        self.key = key  # its name in the tier on disk
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[tuple[int, ...], Node] = {}
        self.holders = 0


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
        # Nodes without holders, least recently used first.  Whoever holds a node holds its parent
        # as long, so each stands before its parent and the first is a leaf.
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_nodes = 0

    @property
    def num_idle(self) -> int:
        """Nodes that nobody holds."""
        return len(self._idle)

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
        """The node of tokens[start : start + BLOCK_TOKENS] after `node`, if it is in memory."""
        return node.children.get(tuple(tokens[start : start + BLOCK_TOKENS]))

    def is_on_disk(self, node: Node, tokens: Sequence[int], start: int) -> bool:
        """Whether `load` would find tokens[start : start + BLOCK_TOKENS] after `node`."""
        if self._disk is None:
            return False
        return self._disk.has(self._disk.child(node.key, tokens[start : start + BLOCK_TOKENS]))

    def load(self, node: Node, tokens: Sequence[int], start: int, block: int) -> Node | None:
        """The node of a block that is on disk and not in memory, held once, read into `block`.

        None if its file is not sound; then `block` is the caller's still, with any contents.
        """
        assert self._disk is not None
        block_tokens = tuple(tokens[start : start + BLOCK_TOKENS])
        key = self._disk.child(node.key, block_tokens)
        if not self._disk.load(key, block_tokens, block, _key_on_disk(node)):
            return None
        loaded = self._add(node, block_tokens, block)
        loaded.holders = 1
        return loaded

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
        self._idle.pop(node, None)
        node.holders += 1

    def hold_path(self, nodes: Sequence[Node]) -> None:
        """Notes one more sequence on a path, given from the root outwards."""
        if nodes and self._disk is not None:
            self._disk.mark_used(_chain(nodes[-1]))
        for node in nodes:
            self.hold(node)

    def release(self, nodes: Sequence[Node]) -> None:
        """Takes one sequence off its path, given from the root outwards."""
        if nodes and self._disk is not None:
            self._disk.touch(_chain(nodes[-1]))
        for node in reversed(nodes):
            node.holders -= 1
            if node.holders == 0:
                self._idle[node] = None

    def insert(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """The node of a block in which `tokens` are computed, held once more.

        Takes `block` back if the node is known.
        """
        known = parent.children.get(tokens)
        if known is None:
            known = self._add(parent, tokens, block)
            known.holders = 1
            if self._disk is not None and len(tokens) == BLOCK_TOKENS:
                self._disk.store(_key_on_disk(parent), CachedBlock(known.key, tokens, block))
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
        while self._idle:
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
        assert {node for node in nodes if not node.holders} == set(self._idle)
        seen: set[Node] = set()
        for node in self._idle:
            assert seen.issuperset(node.children.values()), "a node would leave before its children"
            seen.add(node)
        assert all(node.holders >= sum(c.holders for c in node.children.values()) for node in nodes)

    def _add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        assert 0 < len(tokens) <= BLOCK_TOKENS, "a block cannot hold the KV of these tokens"
        key = b"" if self._disk is None else self._disk.child(parent.key, tokens)
        node = parent.children[tokens] = Node(parent, tokens, block, key)
        self.num_nodes += 1
        return node

    def _evict_one(self) -> None:
        node, _ = self._idle.popitem(last=False)
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.tokens]
        node.parent = None
        self.num_nodes -= 1
        self._pool.give_back([node.block])


def _key_on_disk(node: Node) -> bytes | None:
    """The name of a node's file; None for a root, which has none."""
    return None if node.parent is None else node.key


def _chain(node: Node) -> list[CachedBlock]:
    """The whole blocks from the first of an owner to `node`."""
    chain = []
    while node.parent is not None:
        if len(node.tokens) == BLOCK_TOKENS:
            chain.append(CachedBlock(node.key, node.tokens, node.block))
        node = node.parent
    return chain[::-1]
