"""Record the routes of Hugging Face transformers models.

    with moetape.engines.transformers.record(model, version=0) as recording:
        model.generate(**inputs, max_new_tokens=32, num_return_sequences=4, do_sample=True)
    recording.routes           # one Routes per returned sequence, in output order

Needs torch and transformers. See docs/transformers.md.
"""

from moetape.engines.transformers.recording import Recording, record

__all__ = ["Recording", "record"]
