"""Random stories of caches, against plain lists of what each sequence was fed."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine_helpers import alone, assert_same_experts
from moetape.engines.transformers import record
from tiny_models import tiny

Cell = tuple[int, bool]  # a token, and whether it is real


@dataclass
class Followed:
    """One cache and, for each of its sequences, the cells fed to it."""

    cache: Any
    cells: list[list[Cell]]
    is_fed: bool


class Story:
    """Feeds caches at random and keeps books in plain lists."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = tiny("qwen3_moe", num_hidden_layers=1)
        self.followed: list[Followed] = []

    def step(self) -> None:
        actions = [self.begin]
        if self.followed:
            actions += [self.feed] * 3 + [self.crop, self.reorder, self.repeat, self.select, self.copy]
        self.random.choice(actions)()

    def begin(self) -> None:
        fresh = Followed(None, [[] for _ in range(self.random.randint(1, 3))], is_fed=False)
        self._feed(fresh, padded=self.random.random() < 0.5)
        self.followed.append(fresh)

    def feed(self) -> None:
        one = self.random.choice(self.followed)
        if not one.is_fed:  # a copy shows from now on
            self.followed = [other for other in self.followed if other is not one] + [one]
        self._feed(one, padded=False)

    def crop(self) -> None:
        one = self.random.choice(self.followed)
        num_columns = len(one.cells[0])
        if num_columns > 1:
            cut = self.random.randint(1, num_columns - 1)
            one.cache.crop(-cut)
            one.cells = [cells[:-cut] for cells in one.cells]

    def reorder(self) -> None:
        one = self.random.choice(self.followed)
        index = self.random.choices(range(len(one.cells)), k=len(one.cells))
        one.cache.reorder_cache(torch.tensor(index))
        one.cells = [list(one.cells[i]) for i in index]

    def select(self) -> None:
        one = self.random.choice(self.followed)
        index = self.random.sample(range(len(one.cells)), k=self.random.randint(1, len(one.cells)))
        one.cache.batch_select_indices(torch.tensor(index))
        one.cells = [list(one.cells[i]) for i in index]

    def repeat(self) -> None:
        one = self.random.choice(self.followed)
        if len(one.cells) <= 2:
            one.cache.batch_repeat_interleave(2)
            one.cells = [list(cells) for cells in one.cells for _ in range(2)]

    def copy(self) -> None:
        one = self.random.choice(self.followed)
        twin = Followed(copy.deepcopy(one.cache), [list(cells) for cells in one.cells], is_fed=False)
        self.followed.append(twin)

    def _feed(self, one: Followed, *, padded: bool) -> None:
        num_columns = self.random.randint(1, 5)
        for cells in one.cells:
            pad = self.random.randint(0, num_columns - 1) if padded else 0
            cells += [(self.random.randint(3, 96), i >= pad) for i in range(num_columns)]
        ids = torch.tensor([[token for token, _ in cells[-num_columns:]] for cells in one.cells])
        mask = torch.tensor([[int(real) for _, real in cells] for cells in one.cells])
        with torch.no_grad():
            output = self.model(ids, attention_mask=mask, past_key_values=one.cache, use_cache=True)
        one.cache, one.is_fed = output.past_key_values, True

    def expected(self) -> list[list[int]]:
        shown = [one for one in self.followed if one.is_fed]
        return [[token for token, real in cells if real] for one in shown for cells in one.cells]


@pytest.mark.parametrize("seed", range(25))
def test_sequences_follow_their_caches(seed: int) -> None:
    story = Story(seed)
    with record(story.model, num_slots=4) as recording:
        for _ in range(20):
            story.step()
            assert [routes.tokens.tolist() for routes in recording.routes] == story.expected()
    assert [routes.tokens.tolist() for routes in recording.routes] == story.expected()
    for routes in recording.routes:
        assert routes.complete
        assert routes.start == 0
        if len(routes):  # of a cropped sequence, only padding may be left
            assert_same_experts(routes, alone(story.model, routes.tokens.tolist()))
