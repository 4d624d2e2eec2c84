"""Find the routers of a torch model and describe them as a RouteSpec.

A router is understood when its forward calls ``topk`` itself (directly, or through its own methods or a
helper function), beside the experts of a Mixture-of-Experts block, and says how many experts it has and how
many it picks. Everything else that looks like a Mixture of Experts is refused by name: a wrong record is
worse than none. Nothing here imports transformers.

Threads: functions only, no state.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from moetape import InvalidArgumentError, RouteSpec, UnsupportedError, config
from moetape.models.arguments import check_excluded, check_model


@dataclass(frozen=True, eq=False)
class Router:
    """One router of a model. Keeps its module alive.

    layer: global index of its decoder layer, 0-based, dense layers counted.
    name: dotted path below the model that was searched.
    module: the module whose forward contains the top-k.
    top_k, num_experts: K ids out of [0, num_experts) per token, zero-computation experts included.
    stack: the label under which it was looked for.
    num_layers: how many layers its stack has, dense ones included.
    """

    layer: int
    name: str
    module: nn.Module = field(repr=False)
    top_k: int
    num_experts: int
    stack: str = "target"
    num_layers: int = 0


# Routers of transformers 5.x whose choice is no expert-space top-k.
_REFUSED = {
    "PhimoeTopKRouter": "its sparse mixer picks experts by masked argmax, one after the other",
    "ZayaRouter": "it scores one class more than there are experts and hides the skipped tokens as expert 0",
    "DeepseekV4HashRouter": "it looks the experts up in a table by token id (hash layer), it does not choose",
    "SwitchTransformersTop1Router": "it hands one-hot masks with a capacity to the experts",
    "DogeCDMoE": "it picks pairs of product keys, and its topk gives places in that grid, not experts",
    "JetMoeAttention": "it routes attention beside the feed-forward, two routers in one layer",
    "NllbMoeTop2Router": "it hands one-hot masks with a capacity to the experts",
}
_NOT_UNDERSTOOD = "no module beside its experts calls topk over them in its forward"

_TOP_K = ("top_k", "topk", *config.TOP_K)  # a module's own names before those of configurations
_LOOKS_MOE = re.compile(r"(MoE|Moe|MOE|MoeBlock|MoEBlock|SparseMLP|MoeV\d|MoEV\d)$")
_OTHER_STACKS = re.compile(r"(^|\.)(mtp|draft|nextn|speculat\w*|eagle\w*|medusa\w*)(\.|_|$)", re.IGNORECASE)


def find_routers(
    model: nn.Module,
    stack: str = "target",
    *,
    excluded: Mapping[int, str] | None = None,
    without: Collection[nn.Module] = (),
) -> list[Router]:
    """The routers of `model`, ascending by layer; an empty list for a dense model.

    stack: only a label here, but "target" leaves out modules below a path that names a draft or MTP stack;
        search such a stack by passing its own module with its own label.
    excluded: layers to leave out on purpose, with the reason (hash-routed layers); see RouteSpec.excluded.
    without: modules that are captured in another way; blocks above or below them are left out.

    Raises UnsupportedError, with the path and class, for any block that looks like a Mixture of Experts but
    has no router that is understood, for two routers in one layer, for routers in several layer stacks (pass
    the sub-module that is meant) and for layers of unequal top-k.
    """
    check_model(model)
    check_excluded(excluded)
    excluded = excluded or {}
    routers: dict[int, Router] = {}
    seen: dict[int, str] = {}
    stacks: dict[str, str] = {}
    for name, block in _moe_blocks(model, without):
        if stack == "target" and _OTHER_STACKS.search(name):
            continue
        list_name, layer, num_layers = _place(model, name)
        if layer in excluded:
            continue
        router_name, module = _router_of(name, block)
        if id(module) in seen and seen[id(module)] != router_name:
            raise UnsupportedError(
                f"router {router_name}: expected a module of its own, got that of {seen[id(module)]} again"
            )
        seen[id(module)] = router_name
        stacks.setdefault(list_name, router_name)
        if len(stacks) > 1:
            raise UnsupportedError(
                f"model {type(model).__name__}: expected routers in one stack of layers, got "
                f"{' and '.join(stacks.values())}; pass the sub-module that is meant"
            )
        if layer in routers and routers[layer].module is not module:
            raise UnsupportedError(
                f"layer {layer}: expected one router, got {routers[layer].name} and {router_name}"
            )
        top_k = _number(module, block, _TOP_K)
        num_experts = _number_of_experts(module, block)
        if top_k is None or num_experts is None:
            lacking = "top-k" if top_k is None else "number of experts"
            raise UnsupportedError(
                f"router {router_name} ({type(module).__name__}): its {lacking} is unknown"
            )
        routers[layer] = Router(layer, router_name, module, top_k, num_experts, stack, num_layers)
    found = [routers[layer] for layer in sorted(routers)]
    _refuse_unequal_top_k(found)
    return found


def spec_of(
    model: nn.Module, stack: str = "target", *, excluded: Mapping[int, str] | None = None
) -> RouteSpec:
    """The RouteSpec of a model: its routers' layers, top-k and the largest number of experts.

    Raises InvalidArgumentError for a dense model and UnsupportedError as find_routers does.
    """
    routers = find_routers(model, stack, excluded=excluded)
    if not routers:
        raise InvalidArgumentError(
            f"model {type(model).__name__}: expected at least one Mixture-of-Experts layer, got a dense model"
        )
    return spec_of_routers(routers, model=model_name(model), excluded=excluded)


def spec_of_routers(
    routers: list[Router], *, model: str = "", excluded: Mapping[int, str] | None = None
) -> RouteSpec:
    """The RouteSpec of routers that find_routers gave; at least one."""
    return RouteSpec(
        layers=[router.layer for router in routers],
        top_k=routers[0].top_k,
        num_experts=max(router.num_experts for router in routers),
        num_layers=routers[0].num_layers,
        stack=routers[0].stack,
        excluded=dict(excluded or {}),
        model=model,
    )


def model_name(model: nn.Module) -> str:
    """The free identity text of a model: its config's model type, and its name or path where it has one."""
    return config.model_name(getattr(model, "config", None), default=type(model).__name__)


def calls_topk(module: nn.Module) -> bool:
    """Whether the module's own forward calls something named topk: read from its byte code, nothing runs."""
    return any("topk" in code.co_names for code in _codes_of(module))


def _refuse_unequal_top_k(routers: list[Router]) -> None:
    if len({router.top_k for router in routers}) > 1:
        by_layer = ", ".join(f"{router.name}: {router.top_k}" for router in routers)
        raise UnsupportedError(f"layers of unequal top-k cannot be kept in one spec ({by_layer})")


def _moe_blocks(model: nn.Module, without: Collection[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules that hold experts, and those that are only named like a Mixture-of-Experts block."""
    modules = list(model.named_modules(remove_duplicate=False))
    for name, module in modules:
        if isinstance(module, nn.DataParallel):
            raise UnsupportedError(f"module {name or 'itself'}: nn.DataParallel copies the routers")
    captured = [name for name, module in modules if module in without]
    blocks = [
        (name, module)
        for name, module in modules
        if any(_holds_experts(child_name, child) for child_name, child in module.named_children())
    ]
    experts = [path for name, block in blocks for path in _paths_of_experts(name, block)]
    blocks = [  # adapters wrap experts, which then stand below a module of their own
        (name, block) for name, block in blocks if not any(_is_below(name, path) for path in experts)
    ]
    holders = [name for name, _ in blocks]
    blocks += [
        (name, module)
        for name, module in modules
        if _LOOKS_MOE.search(type(module).__name__)
        and not any(_is_below(holder, name) or _is_below(name, holder) for holder in holders)
    ]
    for name, block in blocks:
        if not any(_is_below(other, name) or _is_below(name, other) for other in captured):
            yield name, block


def _is_below(name: str, above: str) -> bool:
    return name == above or not above or name.startswith(f"{above}.")


def _paths_of_experts(name: str, block: nn.Module) -> Iterator[str]:
    for child_name, child in block.named_children():
        if _holds_experts(child_name, child):
            yield f"{name}.{child_name}" if name else child_name


def _holds_experts(name: str, module: nn.Module) -> bool:
    return name == "experts" or type(module).__name__.endswith("Experts")


def _router_of(name: str, block: nn.Module) -> tuple[str, nn.Module]:
    """Find the one module of a block, or the block itself, whose forward calls topk over the experts."""
    modules = list(_outside_experts(name, block))
    for path, module in modules:
        kind = type(_original(module)).__name__
        if (reason := _REFUSED.get(kind)) is not None:
            raise UnsupportedError(f"router {path} ({kind}): not supported, {reason}")
    calling = [(path, module) for path, module in modules if calls_topk(_original(module))]
    # A block as large as a decoder layer also holds what calls topk and is no router.
    known = [(path, module) for path, module in calling if _number(module, block, _TOP_K) is not None]
    inner = [(path, module) for path, module in known or calling if module is not block]
    children = [(path, module) for path, module in inner if path.rpartition(".")[0] == name]
    choice = children or inner or known or calling
    if len(choice) != 1:
        reason = f"several modules call topk: {[path for path, _ in choice]}" if choice else _NOT_UNDERSTOOD
        raise UnsupportedError(f"block {name} ({type(block).__name__}): no router is understood, {reason}")
    return choice[0]


def _outside_experts(name: str, block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield name, block
    if _original(block) is not block:
        return
    for child_name, child in block.named_children():
        if not _holds_experts(child_name, child):
            yield from _outside_experts(f"{name}.{child_name}" if name else child_name, child)


def _original(module: nn.Module) -> nn.Module:
    """What a module stands for: PEFT's modules_to_save keep trained copies beside it, and call one."""
    original = getattr(module, "original_module", None)
    is_one_of_several = isinstance(original, nn.Module) and hasattr(module, "modules_to_save")
    return original if is_one_of_several else module


def _place(model: nn.Module, name: str) -> tuple[str, int, int]:
    """The path of the outermost list of layers above a module, its index there, and the list's length."""
    module: nn.Module = model
    path: list[str] = []
    for part in name.split(".") if name else []:
        if isinstance(module, nn.ModuleList) and part.isdigit():
            return ".".join(path), int(part), len(module)
        module = getattr(module, part)
        path.append(part)
    raise UnsupportedError(
        f"block {name or type(model).__name__}: expected a place in a list of layers, got none"
    )


def _number(module: nn.Module, block: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first of `names` that is a positive whole number on the module, its config, or its block."""
    for owner in (module, getattr(module, "config", None), block, getattr(block, "config", None)):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _number_of_experts(module: nn.Module, block: nn.Module) -> int | None:
    number = _number(module, module, config.NUM_EXPERTS)
    if number is not None:
        return number
    widths = {child.out_features for child in module.children() if isinstance(child, nn.Linear)}
    if len(widths) == 1:
        return int(widths.pop())
    for name, child in block.named_children():
        if _holds_experts(name, child):
            number = _number(child, block, config.NUM_EXPERTS)
            return len(child) if number is None and isinstance(child, nn.ModuleList) else number
    return None


def _codes_of(module: nn.Module) -> Iterator[CodeType]:
    """Byte code of the forward, of the module's methods that it names, and of helpers of its own package."""
    kind = type(module)
    pending: list[Any] = [module.__dict__.get("forward"), kind.forward]
    done: set[int] = set()
    while pending:
        function = _unwrapped(pending.pop())
        if function is None or id(function.__code__) in done:
            continue
        for code in _nested(function.__code__):
            done.add(id(code))
            yield code
            for name in code.co_names:
                pending += _own(kind, name, inherited="super" in code.co_names)
                pending.append(_helper(function, name))


def _unwrapped(function: Any) -> FunctionType | None:
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = getattr(function.__wrapped__, "__func__", function.__wrapped__)
    return function if isinstance(function, FunctionType) else None


def _own(kind: type, name: str, *, inherited: bool) -> list[Any]:
    """Methods of the module by this name; with `inherited`, those of its bases that super() may reach."""
    bases = [base for base in kind.__mro__ if base is not nn.Module]
    methods = [base.__dict__[name] for base in bases if name in base.__dict__]
    return methods if inherited else methods[:1]


def _helper(function: FunctionType, name: str) -> Any:
    helper = function.__globals__.get(name)
    package = function.__module__.partition(".")[0]
    same = isinstance(helper, FunctionType) and helper.__module__.partition(".")[0] == package
    return helper if same else None


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
