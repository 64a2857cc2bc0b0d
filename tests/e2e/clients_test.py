#!/usr/bin/env python3
"""Proves that real clients talk to `headstart serve` unchanged, with a real model.

    clients_test.py HEADSTART [unittest arguments]

HEADSTART_TEST_QWEN names the model, which knows tools; HEADSTART_TEST_CLIENTS the folder that holds
the packages of clients.txt (`./run test` sets both). What an answer must be is said by the client's
own types, by json and by numbers of numpy, never by an earlier answer of ours. To add a client: its
package in clients.txt and a class here.
"""
import json
import os
import subprocess
import sys
import unittest

MODEL = os.environ.get("HEADSTART_TEST_QWEN", "")
CLIENTS = os.environ.get("HEADSTART_TEST_CLIENTS", "")
if not MODEL or not CLIENTS:
    print("HEADSTART_TEST_QWEN or HEADSTART_TEST_CLIENTS is not set; ./run test sets them")
    sys.exit(77)
sys.path.insert(0, CLIENTS)

import numpy
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai_like import OpenAILike

import server_test

server_test.MODEL = MODEL

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20},
                           "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "The time now",
                                         "parameters": {"type": "object", "properties": {}}}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 16},
                   "age": {"type": "integer", "minimum": 1, "maximum": 120},
                   "tags": {"type": "array", "items": {"type": "string", "maxLength": 8},
                            "minItems": 1, "maxItems": 2}},
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "What is the weather in Paris, in Celsius?"}]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = server_test.Running("-c", "2048", "--spec-draft-n-max", "4")
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.openai = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0,
                                   timeout=server_test.PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def assert_person(self, text):
        person = json.loads(text)
        self.assertEqual(set(person), {"name", "age", "tags"})
        self.assertTrue(1 <= person["age"] <= 120)
        self.assertTrue(1 <= len(person["tags"]) <= 2)
        self.assertLessEqual(len(person["name"]), 16)

    def assert_weather(self, name, arguments):
        self.assertEqual(name, "get_weather")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        self.assertEqual(set(arguments), {"city", "unit"})
        self.assertIn(arguments["unit"], ("C", "F"))


class OpenAiTest(Clients):
    def chat(self, **more):
        body = {"model": "any", "messages": ASK, "temperature": 0, "max_tokens": 60} | more
        return self.openai.chat.completions.create(**body)

    def test_streams_text(self):
        chunks = list(self.chat(stream=True, max_tokens=8, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual(len({(c.id, c.created) for c in chunks}), 1)
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        self.assertEqual(text, self.chat(max_tokens=8).choices[0].message.content)

    def test_calls_a_tool_and_reads_its_result(self):
        answer = self.chat(tools=[WEATHER, TIME], tool_choice="required",
                           parallel_tool_calls=False).choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        call, = answer.message.tool_calls
        self.assertIn(call.function.name, ("get_weather", "get_time"))
        json.loads(call.function.arguments)
        after = self.chat(tools=[WEATHER, TIME], messages=ASK + [
            answer.message,
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees, sunny"}])
        self.assertTrue(after.choices[0].message.content or after.choices[0].message.tool_calls)

    def test_calls_in_parallel(self):
        answer = self.chat(tools=[WEATHER], tool_choice="required", max_tokens=100).choices[0]
        calls = answer.message.tool_calls
        self.assertGreater(len(calls), 1)
        self.assertEqual(len({c.id for c in calls}), len(calls))
        for call in calls[:-1]:  # the last may be cut
            self.assert_weather(call.function.name, call.function.arguments)

    def test_calls_the_named_tool(self):
        choice = {"type": "function", "function": {"name": "get_weather"}}
        answer = self.chat(tools=[TIME, WEATHER], tool_choice=choice,
                           parallel_tool_calls=False).choices[0]
        call = answer.message.tool_calls[0].function
        self.assert_weather(call.name, call.arguments)

    def test_streams_a_call(self):
        body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        whole = self.chat(**body).choices[0].message.tool_calls
        with self.openai.chat.completions.stream(
                model="any", messages=ASK, temperature=0, max_tokens=60, **body) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertEqual(final.finish_reason, "tool_calls")
        self.assertEqual([(c.function.name, c.function.arguments) for c in final.message.tool_calls],
                         [(c.function.name, c.function.arguments) for c in whole])

    def test_answers_in_json(self):
        for response_format in ({"type": "json_schema", "json_schema":
                                 {"name": "person", "strict": True, "schema": PERSON}},
                                {"type": "json_object", "schema": PERSON}):
            for temperature in (0, 1.5):
                answer = self.chat(response_format=response_format, temperature=temperature, seed=5,
                                   max_tokens=200,
                                   messages=[{"role": "user", "content": "Invent a person."}])
                self.assert_person(answer.choices[0].message.content)
                self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_answers_by_a_grammar(self):
        answer = self.chat(extra_body={"grammar": 'root ::= "yes" | "no"'})
        self.assertIn(answer.choices[0].message.content, ("yes", "no"))

    def test_a_grammar_answers_the_same_with_proposals(self):
        schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
        quoted = [{"role": "user", "content":
                   'Repeat this: {"name": "Ada Ada Ada", "age": 36, "tags": ["a b a b", "a b a b"]}'}]
        answers = [self.chat(messages=quoted, response_format=schema, max_tokens=120,
                             extra_body={"headstart": {"n_propose_max": n}}) for n in (0, 4)]
        self.assertEqual(*(a.choices[0].message.content for a in answers))
        self.assertGreater(answers[1].model_extra["headstart"]["n_proposed"], 0)

    def test_probabilities(self):
        answer = self.chat(logprobs=True, top_logprobs=20, max_tokens=6)
        choice = answer.choices[0]
        self.assertEqual(len(choice.logprobs.content), answer.usage.completion_tokens)
        text = b"".join(bytes(t.bytes) for t in choice.logprobs.content)
        self.assertEqual(text.decode(), choice.message.content)
        for token in choice.logprobs.content:
            top = numpy.array([t.logprob for t in token.top_logprobs])
            self.assertEqual(len(top), 20)
            self.assertTrue((numpy.diff(top) <= 0).all())
            self.assertLessEqual(numpy.exp(top).sum(), 1 + 1e-4)
            self.assertEqual(token.token, token.top_logprobs[0].token)  # greedy
            self.assertAlmostEqual(token.logprob, top[0], places=6)
        # They are of the raw logits: no option of sampling changes them.
        hot = self.chat(logprobs=True, top_logprobs=5, max_tokens=1, temperature=2, seed=3)
        for a, b in zip(hot.choices[0].logprobs.content[0].top_logprobs,
                        choice.logprobs.content[0].top_logprobs):
            self.assertEqual(a.token, b.token)
            self.assertAlmostEqual(a.logprob, b.logprob, places=5)

    def test_probabilities_of_completions(self):
        body = {"model": "any", "prompt": "The capital of France is", "temperature": 0,
                "max_tokens": 5, "logprobs": 3}
        answer = self.openai.completions.create(**body).choices[0]
        self.assertEqual("".join(answer.logprobs.tokens), answer.text)
        self.assertEqual(answer.logprobs.text_offset[1], len(answer.logprobs.tokens[0]))
        streamed = [c.choices[0].logprobs for c in self.openai.completions.create(stream=True, **body)]
        self.assertEqual([t for l in streamed if l for t in l.tokens], answer.logprobs.tokens)

    def test_several_choices(self):
        body = {"n": 3, "seed": 11, "temperature": 1.2, "max_tokens": 6}
        answer = self.chat(**body)
        texts = [c.message.content for c in answer.choices]
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        for i, text in enumerate(texts):
            alone = self.chat(**body | {"n": 1, "seed": 11 + i})
            self.assertEqual(text, alone.choices[0].message.content)
        self.assertGreater(len(set(texts)), 1)
        streamed = [""] * 3
        for chunk in self.chat(stream=True, **body):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual(streamed, texts)

    def test_biases(self):
        yes = self.server.post("/tokenize", {"content": "yes"})["tokens"][0]
        for bias in ({yes: 100}, [[yes, 100]], [["yes", 100]]):
            answer = self.chat(max_tokens=2, extra_body={"logit_bias": bias})
            self.assertEqual(answer.choices[0].message.content, "yesyes")

    def test_errors(self):
        for more, param in (({"tools": [{"type": "function"}]}, "tools[0].function"),
                            ({"n": 9}, "n"), ({"top_logprobs": 2}, "top_logprobs"),
                            ({"extra_body": {"grammar": "root ::= nothing"}}, "grammar"),
                            ({"extra_body": {"grammar": 'root ::= "a"{5,3}'}}, "grammar"),
                            ({"extra_body": {"mirostat": 2}}, "mirostat")):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.chat(**more)
            self.assertEqual(raised.exception.body["param"], param)
            with self.assertRaises(openai.BadRequestError):
                list(self.chat(stream=True, **more))
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(messages=[{"role": "user", "content": "word " * 3000}])
        self.assertEqual(raised.exception.code, "context_length_exceeded")


class LangChainTest(Clients):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llm = ChatOpenAI(base_url=cls.url, api_key="none", model="any", temperature=0,
                             max_tokens=60, max_retries=0)

    def test_streams(self):
        self.assertEqual("".join(c.content for c in self.llm.stream("Say hello.")),
                         self.llm.invoke("Say hello.").content)

    def test_tools(self):
        bound = self.llm.bind_tools([WEATHER], tool_choice="get_weather",
                                      parallel_tool_calls=False)
        question = HumanMessage(ASK[0]["content"])
        answer = bound.invoke([question])
        call = answer.tool_calls[0]
        self.assert_weather(call["name"], call["args"])
        total = None
        for chunk in bound.stream([question]):
            total = chunk if total is None else total + chunk
        self.assertEqual(total.tool_calls[0]["args"], call["args"])
        result = ToolMessage("21 degrees", tool_call_id=call["id"])
        self.assertIsNotNone(self.llm.bind_tools([WEATHER]).invoke([question, answer, result]))

    def test_structured_output(self):
        schema = PERSON | {"title": "person", "description": "a person"}
        person = ChatOpenAI(base_url=self.url, api_key="none", model="any", temperature=0,
                            max_retries=0).with_structured_output(
                                schema, method="json_schema").invoke("Invent a person.")
        self.assert_person(json.dumps(person))


class LlamaIndexTest(Clients):
    def test_chats_streams_and_calls(self):
        llm = OpenAILike(model="any", api_base=self.url, api_key="none", is_chat_model=True,
                         is_function_calling_model=True, max_retries=0, max_tokens=24, temperature=0,
                         context_window=2048, timeout=server_test.PATIENCE_S)
        message = [ChatMessage(role="user", content="Say hello.")]
        whole = llm.chat(message).message.content
        self.assertEqual("".join(c.delta for c in llm.stream_chat(message)), whole)
        self.assertTrue(llm.complete("Say hello.").text)
        asked = [ChatMessage(role="user", content=ASK[0]["content"])]
        call = llm.chat(asked, tools=[WEATHER], tool_choice="required",
                        parallel_tool_calls=False, max_tokens=60).message.additional_kwargs["tool_calls"][0]
        self.assert_weather(call.function.name, call.function.arguments)


class CurlTest(Clients):
    def test_raw_bytes_of_a_call(self):
        body = {"messages": ASK, "temperature": 0, "max_tokens": 60, "stream": True,
                "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
        out = subprocess.run(["curl", "-sSN", self.url + "/chat/completions", "-d", json.dumps(body)],
                             capture_output=True, check=True, timeout=server_test.PATIENCE_S)
        events = server_test.events(out.stdout.decode())
        self.assertEqual(events.pop(), "data: [DONE]")
        choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
        self.assertEqual(choices[0]["delta"], {"role": "assistant", "content": ""})
        calls = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
        self.assertEqual(calls[0]["index"], 0)
        self.assertEqual(calls[0]["type"], "function")
        self.assertEqual(calls[0]["function"], {"name": "get_weather", "arguments": ""})
        later = [c for c in calls[1:] if "id" not in c and c["index"] == 0]
        self.assertGreater(len(later), 2)
        for call in later:
            self.assertEqual(set(call), {"index", "function"})
            self.assertEqual(set(call["function"]), {"arguments"})
        self.assert_weather("get_weather", "".join(c["function"]["arguments"] for c in later))
        self.assertEqual(choices[-1]["delta"], {})
        self.assertEqual(choices[-1]["finish_reason"], "tool_calls")
        self.assertTrue(all(c["finish_reason"] is None for c in choices[:-1]))


class LlamaServerTest(Clients):
    """What scripts that were written for llama-server call."""

    def test_tokenizes_and_back(self):
        text = "Héllo <|im_end|> \U0001F600"
        tokens = self.server.post("/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens})["content"], text)
        pieces = self.server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        self.assertEqual([p["id"] for p in pieces], tokens)
        joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])
                          for p in pieces)
        self.assertEqual(joined.decode(), text)
        self.assertGreater(len(self.server.post(
            "/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]), 1)

    def test_template_and_props(self):
        prompt = self.server.post("/apply-template", {"messages": ASK, "tools": [WEATHER]})["prompt"]
        self.assertIn("get_weather", prompt)
        answer = self.server.post("/completion", {"prompt": prompt, "n_predict": 4, "temperature": 0})
        chat = self.server.post("/v1/chat/completions", {"messages": ASK, "tools": [WEATHER],
                                                         "max_tokens": 4, "temperature": 0})
        self.assertEqual(answer["tokens_evaluated"], chat["usage"]["prompt_tokens"])
        self.assertEqual(answer["content"], chat["choices"][0]["message"]["content"])
        props = json.loads(self.server.get("/props")[2])
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 2048)
        self.assertEqual(props["model_path"], os.path.basename(MODEL))
        self.assertIn("im_start", props["chat_template"])

    def test_native_completion(self):
        body = {"prompt": "1 2 3 4", "n_predict": 6, "temperature": 0, "n_probs": 2,
                "stop": [" 7"]}
        answer = self.server.post("/completion", body)
        self.assertEqual(answer["content"], " 5 6")
        self.assertEqual((answer["stop"], answer["stop_type"], answer["stopping_word"]),
                         (True, "word", " 7"))
        timings = answer["timings"]
        self.assertEqual(timings["predicted_n"], answer["tokens_predicted"])
        self.assertEqual(timings["prompt_n"] + timings["cache_n"], answer["tokens_evaluated"])
        self.assertEqual(len(answer["completion_probabilities"][0]["top_logprobs"]), 2)


if __name__ == "__main__":
    server_test.PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
