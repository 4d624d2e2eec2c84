"""Small Mixture-of-Experts models in plain torch, for what no model of transformers does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Router(nn.Module):
    """Softmax top-k, the usual kind."""

    def __init__(self, top_k: int = 2, num_experts: int = 8, hidden: int = 6) -> None:
        super().__init__()
        self.top_k = top_k
        self.num_experts = num_experts
        self.weight = nn.Parameter(torch.randn(num_experts, hidden))

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(hidden_states @ self.weight.T, dim=-1)
        return torch.topk(scores, self.top_k, dim=-1)


class ArgmaxRouter(Router):
    def forward(self, hidden_states: torch.Tensor) -> Any:
        scores = hidden_states @ self.weight.T
        return torch.sort(scores, descending=True).values[:, : self.top_k]


class TwiceRouter(Router):
    """Groups of one expert each: the top-k over groups looks like the one over experts."""

    def forward(self, hidden_states: torch.Tensor) -> Any:
        scores = torch.softmax(hidden_states @ self.weight.T, dim=-1)
        groups = scores.topk(self.top_k, dim=-1).indices
        return torch.topk(scores.scatter_add(1, groups, torch.ones_like(scores)), self.top_k, dim=-1)


class MaskingRouter(Router):
    """Chooses among the first half of its experts; the others' scores are lost."""

    value = 0.0

    def forward(self, hidden_states: torch.Tensor) -> Any:
        scores = torch.softmax(hidden_states @ self.weight.T, dim=-1)
        keep = torch.ones_like(scores, dtype=torch.bool)
        keep[:, 4:] = False
        return torch.topk(torch.where(keep, scores, self.value), self.top_k, dim=-1)


class SometimesRouter(Router):
    skip = False

    def forward(self, hidden_states: torch.Tensor) -> Any:
        if self.skip:
            return None
        return super().forward(hidden_states)


class HelperRouter(Router):
    """Calls topk two calls deep: through a method of its own, and a function beside it."""

    def forward(self, hidden_states: torch.Tensor) -> Any:
        return self.choose(hidden_states @ self.weight.T)

    def choose(self, scores: torch.Tensor) -> Any:
        return _top(scores, self.top_k)


def _top(scores: torch.Tensor, k: int) -> Any:
    return torch.topk(scores, k, dim=-1)


class Experts(nn.Module):
    """Takes down what it is given."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.received: list[torch.Tensor] = []

    def forward(self, ids: torch.Tensor) -> None:
        self.received.append(ids.clone())


class Block(nn.Module):
    def __init__(self, router: nn.Module | None = None) -> None:
        super().__init__()
        self.gate = Router() if router is None else router
        self.experts = Experts(8)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weights, ids = self.gate(hidden_states)
        self.experts(ids)
        return hidden_states * weights.sum(dim=-1, keepdim=True)


class Layer(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states + self.mlp(hidden_states)


class Toy(nn.Module):
    """Layers of the given feed-forwards; a Linear is a dense layer."""

    def __init__(self, *mlps: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(mlp) for mlp in mlps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def toy(*routers: nn.Module | None, seed: int = 0) -> Toy:
    """One Mixture-of-Experts layer for each router; None is a dense layer."""
    torch.manual_seed(seed)
    return Toy(*(nn.Linear(6, 6) if router is None else Block(router) for router in routers))
