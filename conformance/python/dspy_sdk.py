"""A program of DSPy with the history of its conversation."""

from __future__ import annotations

from typing import Any

import dspy
from talk import Client, Job, talk


def predict(job: Job) -> Client:
    lm = dspy.LM("openai/main", api_base=job.v1, api_key=job.key, cache=False, num_retries=0, extra_headers=job.headers)
    dspy.configure(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))

    class Clerk(dspy.Signature):
        """Answer questions about invoices."""

        history: dspy.History = dspy.InputField()
        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    program = dspy.Predict(Clerk)
    history: list[dict[str, Any]] = []

    def ask(text: str) -> str:
        answer = program(question=text, history=dspy.History(messages=list(history))).answer
        history.append({"question": text, "answer": answer})
        return answer

    async def stream(text: str) -> list[str]:
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        streaming: Any = dspy.streamify(program, stream_listeners=[listener])
        given = streaming(question=text, history=dspy.History(messages=list(history)))
        return [event.chunk async for event in given if isinstance(event, dspy.streaming.StreamResponse)]

    return Client(ask, stream)


talk({("predict", "dspy"): predict})
