"""RouteSpec.from_config: what the configuration of a Hugging Face model says about its MoE layers.

A configuration is read under the names that models in use give to things; no framework is imported.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moetape._moetape import RouteSpec
from moetape.errors import CorruptDataError, InvalidArgumentError, UnsupportedError

__all__ = ["NUM_EXPERTS", "TOP_K", "model_name", "spec_from_config"]

# The first name that a configuration has counts.
NUM_EXPERTS = (
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "moe_num_experts",
    "num_routed_experts",
)
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "experts_per_token",
    "num_selected_experts",
)
_NUM_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
_MOE_KINDS = ("sparse", "moe", "hash_moe")


def spec_from_config(config: object, **fields: Any) -> RouteSpec:
    """The spec that a configuration describes; `fields` replace what it says. See RouteSpec.from_config."""
    settings = _Settings(_text_config(_loaded(config)))
    num_experts = settings.largest(NUM_EXPERTS)
    if num_experts is None or num_experts < 2:  # one expert is a dense layer under another name
        raise _no_moe_layers(f"{settings.model} without 2 or more of {', '.join(NUM_EXPERTS)}")
    num_layers = settings.num_layers()
    hashed = [layer for layer, kind in enumerate(settings.layer_kinds()) if kind == "hash_moe"]
    derived: dict[str, Any] = {
        "num_experts": num_experts + (settings.largest(("zero_expert_num",)) or 0),
        "num_layers": num_layers,
        "excluded": dict.fromkeys(hashed, "hash-routed"),
        "model": settings.model,
    }
    if "layers" not in fields:
        moe_layers = [layer for layer in settings.moe_layers(num_layers) if layer not in hashed]
        if not moe_layers:
            raise InvalidArgumentError(
                f"config: expected a model with MoE layers, got {settings.model} with none"
            )
        derived["layers"] = moe_layers
    if "top_k" not in fields:
        derived["top_k"] = settings.top_k([*fields.get("layers", derived.get("layers", []))])
    return RouteSpec(**{**derived, **fields})


def model_name(config: object, default: str = "") -> str:
    """The free identity text of a configuration's model: its type, and its name or path where it has one."""
    kind = _read(config, "model_type") or default or type(config).__name__
    path = _read(config, "_name_or_path")
    return f"{kind} {path}" if path else str(kind)


def _no_moe_layers(got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"config: expected a model with MoE layers, got {got}")


def _loaded(config: object) -> object:
    if not isinstance(config, str | os.PathLike):
        return config
    path = Path(config)
    if path.is_dir():
        path /= "config.json"
    try:
        loaded = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidArgumentError(
            f"config: expected a readable file, got {path}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"config: expected JSON in {path}, got {error}") from error
    if not isinstance(loaded, dict):
        raise CorruptDataError(f"config: expected a JSON object in {path}, got {type(loaded).__name__}")
    return loaded


def _read(config: object, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


def _text_config(config: object) -> object:
    """The part about the text decoder, where a configuration has several parts."""
    get_text_config = None if isinstance(config, dict) else getattr(config, "get_text_config", None)
    if callable(get_text_config):
        return get_text_config()
    for name in _TEXT_CONFIGS:
        part = _read(config, name)
        if part is not None:
            return _text_config(part)
    return config


class _Settings:
    """A configuration, an object or a dict, by the names of its settings; None counts as absent."""

    def __init__(self, config: object) -> None:
        self._config = config
        self.model = model_name(config)
        # Two sub-layers of attention share one MoE layer; num_hidden_layers counts the former; none is dense.
        self._is_longcat = self.model.startswith("longcat")

    def _get(self, name: str) -> Any:
        return _read(self._config, name)

    def _first(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            value = self._get(name)
            if value is not None:
                return name, value
        return names[0], None

    def _int(self, name: str, default: int) -> int:
        value = self._get(name)
        return default if value is None else _checked_int(name, value)

    def _list(self, name: str, length: int) -> list[Any] | None:
        """A setting with one item per layer, or None where it is absent or of another kind."""
        value = self._get(name)
        if not isinstance(value, list | tuple):
            return None
        # Some files list the layers of multi-token prediction behind those of the stack.
        if len(value) < length:
            raise UnsupportedError(
                f"config.{name}: expected one item for each of {length} layers, got {len(value)}"
            )
        return list(value[:length])

    def largest(self, names: Sequence[str]) -> int | None:
        name, value = self._first(names)
        if value is None:
            return None
        values = value if isinstance(value, list | tuple) else [value]
        return max((_checked_int(name, item) for item in values), default=0)

    def num_layers(self) -> int:
        names = ("num_layers",) if self._is_longcat else _NUM_LAYERS
        name, value = self._first(names)
        if value is None:
            raise UnsupportedError(f"config: expected one of {', '.join(names)}, got {self.model} without")
        return _checked_int(name, value)

    def layer_kinds(self) -> list[str]:
        """What each layer's feed-forward part is called, where the configuration lists it."""
        num_layers = self.num_layers()
        kinds = self._list("mlp_layer_types", num_layers)
        if kinds is not None:
            return [str(kind) for kind in kinds]
        blocks = self._list("layers_block_type", num_layers)
        if blocks is not None and "moe" in blocks:
            return [str(block) for block in blocks]
        pattern = self._get("hybrid_override_pattern")
        if isinstance(pattern, str):
            return ["moe" if letter == "E" else letter for letter in pattern[:num_layers]]
        return []

    def moe_layers(self, num_layers: int) -> list[int]:
        """The layers with experts, by the first of the field's rules that the configuration follows."""
        kinds = self.layer_kinds()
        if kinds:
            return [layer for layer, kind in enumerate(kinds) if kind in _MOE_KINDS]
        listed = self._listed_layers(num_layers)
        if listed is not None:
            return [layer for layer in listed if 0 <= layer < num_layers]
        rules = [self._interval_rule(num_layers), self._dense_first_rule(num_layers)]
        known = [rule for rule in rules if rule is not None]
        two_widths = self._get("moe_intermediate_size") and self._get("intermediate_size")
        if not known and two_widths and not self._is_longcat:
            raise UnsupportedError(
                f"config: expected what tells MoE layers from dense ones, such as first_k_dense_replace or "
                f"mlp_layer_types, got {self.model} without; name the layers with layers="
            )
        return [layer for layer in range(num_layers) if all(layer in rule for rule in known)]

    def _listed_layers(self, num_layers: int) -> list[int] | None:
        name, listed = self._first(("moe_layers", "moe_layers_enum"))
        if isinstance(listed, str):
            items = [item.strip() for item in listed.split(",")]
            listed = [int(item) if item.isdecimal() else item for item in items if item]
        if listed is not None:
            return sorted(_checked_layers(name, listed))
        frequencies = self._list("moe_layer_freq", num_layers)
        if frequencies is not None:
            return [layer for layer, frequency in enumerate(frequencies) if frequency]
        return None

    def _interval_rule(self, num_layers: int) -> set[int] | None:
        layers = range(num_layers)
        if self._get("interleave_moe_layer_step") is not None:
            step = self._positive("interleave_moe_layer_step")
            return set(layers[step - 1 :: step])
        if self._get("expert_layer_period") is not None:
            return set(layers[self._int("expert_layer_offset", 0) :: self._positive("expert_layer_period")])
        if self._get("moe_layer_start_index") is not None or self._get("moe_layer_interval") is not None:
            interval = self._positive("moe_layer_interval")
            first = self._int("moe_layer_start_index", 0)
            last = self._int("moe_layer_end_index", -1)
            chosen = layers[first : num_layers if last == -1 else last + 1]
            return {layer for layer in chosen if (layer + 1) % interval == 0}
        if self._get("decoder_sparse_step") is not None or self._get("mlp_only_layers") is not None:
            step = self._positive("decoder_sparse_step")
            return set(layers[step - 1 :: step]) - set(self._layers("mlp_only_layers"))
        return None

    def _dense_first_rule(self, num_layers: int) -> set[int] | None:
        name, num_dense = self._first(("first_k_dense_replace", "num_dense_layers"))
        if num_dense is None:
            return None
        every = self._positive("moe_layer_freq")
        return {layer for layer in range(_checked_int(name, num_dense), num_layers) if layer % every == 0}

    def _layers(self, name: str) -> list[int]:
        value = self._get(name)
        return [] if value is None else _checked_layers(name, value)

    def _positive(self, name: str) -> int:
        number = self._int(name, 1)
        if number < 1:
            raise UnsupportedError(f"config.{name}: expected 1 or more, got {number}")
        return number

    def top_k(self, layers: Sequence[int]) -> int:
        name, value = self._first(TOP_K)
        if value is None:
            raise UnsupportedError(f"config: expected one of {', '.join(TOP_K)}, got {self.model} without")
        if not isinstance(value, list | tuple):
            return _checked_int(name, value)
        different = {_checked_int(name, value[layer]) for layer in layers if layer < len(value)}
        if len(different) != 1:
            raise UnsupportedError(f"config.{name}: expected the same for all MoE layers, got {list(value)}")
        return different.pop()


def _checked_layers(name: str, value: object) -> list[int]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UnsupportedError(f"config.{name}: expected a list of layers, got {value!r}")
    return [_checked_int(name, layer) for layer in value]


def _checked_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedError(f"config.{name}: expected an integer, got {value!r}")
    return value
