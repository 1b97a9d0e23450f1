"""The name under which a request's TBT target travels from the router to a choice of depth inside the engine."""

TARGET_FIELD = "drafter_selector_tbt_target_ms"
"""A key of SGLang's `custom_params`: milliseconds per token, a number above 0."""
