"""SGLang: moetape in place of its capturer of routed experts.

Installing moetape is enough: SGLang loads the plug-in by itself, and its own flag
--enable-return-routed-experts switches it on. For a fork that calls a capturer itself, this package has
SGLang's names with SGLang's signatures.

Needs torch, and SGLang where it is called. See docs/sglang.md.
"""

from moetape.engines.sglang.capturer import (
    MISSING_ID,
    RoutedExpertsCapturer,
    destroy_global_experts_capturer,
    disable_routed_experts_capture_for_draft,
    get_global_experts_capturer,
    set_global_experts_capturer,
)
from moetape.engines.sglang.meta_info import extract_routed_experts_from_meta_info

__all__ = [
    "MISSING_ID",
    "RoutedExpertsCapturer",
    "destroy_global_experts_capturer",
    "disable_routed_experts_capture_for_draft",
    "extract_routed_experts_from_meta_info",
    "get_global_experts_capturer",
    "set_global_experts_capturer",
]
