"""What keeps answers in the prompt: recorded conversations through the real engine, without a model.

`docs/fidelity.md` says what is measured and what it came to.
"""
