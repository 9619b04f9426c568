"""Plays what clients do against molt's server, with SDKs and a framework that know nothing of it, as their documentation shows.

Reads {scenario: {"url": ..., "key": ...}} from standard input, plays each scenario by the function of that name, all at once, and prints
{scenario: what it saw}. All that a server sends must fit the SDK's own types with every field that they require.
"""
import asyncio
import concurrent.futures
import json
import sys
import threading
import traceback

import agents
import anthropic
import openai
from pydantic import BaseModel

ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
SUB = {"name": "sub", "description": "Subtracts.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CHAT_TOOLS = [{"type": "function", "function": ADD}, {"type": "function", "function": SUB}]
RESPONSE_TOOLS = [{"type": "function", "strict": False, **ADD}, {"type": "function", "strict": False, **SUB}]
MESSAGE_TOOLS = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in (ADD, SUB)]
THINK = {"type": "enabled", "budget_tokens": 1024}
GPT, ANTHROPIC = openai.OpenAI(api_key="none"), anthropic.Anthropic(api_key="none")
LOOP = asyncio.new_event_loop()  # of all that is asynchronous


def whole(x):
    """x, whose fields are all there and of the right type."""
    type(x).model_validate(x.to_dict())
    return x


def said(text, role="user"):
    return {"role": role, "content": text}


def raises(call, *fields):
    """The class of the SDK's error and some of its fields."""
    try:
        call()
    except (openai.APIError, anthropic.APIError) as e:
        return [type(e).__name__] + [getattr(e, f, None) for f in fields]


def gpt(to):
    return GPT.with_options(base_url=to["url"] + "/v1", api_key=to["key"])


def anthropic_at(to):
    return ANTHROPIC.with_options(base_url=to["url"], api_key=to["key"])


def wait(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result()


def chat(client, messages, **options):
    return whole(client.chat.completions.create(model="policy", messages=messages, **options)).choices[0]


def respond(client, given, **options):
    return whole(client.responses.create(model="policy", input=given, **options))


def write(client, messages, **options):
    return whole(client.messages.create(model="any", max_tokens=300, messages=messages, **options))


def total(usage):
    assert usage.prompt_tokens > 5 and usage.prompt_tokens + usage.completion_tokens == usage.total_tokens, usage
    return usage.completion_tokens


def chat_plain(to):
    r = whole(gpt(to).chat.completions.create(model="gpt", messages=[said("be brief", "developer"), said("hi")], user="me"))
    return [r.choices[0].message.content, r.choices[0].finish_reason, r.model, total(r.usage)]


def chat_stream(to):
    """Once by hand, once by the helper, which adds up."""
    text, tokens = "", 0
    for chunk in gpt(to).chat.completions.create(model="gpt", messages=[said("a")], stream=True, stream_options={"include_usage": True}):
        for choice in whole(chunk).choices:
            text += choice.delta.content or ""
        tokens = total(chunk.usage) if chunk.usage else 0
    with gpt(to).chat.completions.stream(model="gpt", messages=[said("b")], stream_options={"include_usage": True}) as s:
        grown = "".join(e.delta for e in s if e.type == "content.delta")
        last = s.get_final_completion()
    return [text, tokens, grown, last.choices[0].message.content, last.choices[0].finish_reason, total(last.usage)]


class Add(BaseModel):
    a: int


def chat_tools(to):
    """A call, its result, the answer, a question more; the last as a stream with two more calls."""
    client, messages, tools = gpt(to), [said("a")], [openai.pydantic_function_tool(Add, name="add")]
    calls = []
    for _ in range(2):
        m = chat(client, messages, tools=tools).message
        messages.append(m)
        for c in m.tool_calls or []:
            calls.append([m.content, c.function.name, json.loads(c.function.arguments)])
            messages.append({"role": "tool", "tool_call_id": c.id, "content": "3"})
    messages.append(said("b"))
    with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as s:
        done = [e.parsed_arguments.a for e in s if e.type == "tool_calls.function.arguments.done"]
        last = whole(s.get_final_completion()).choices[0]
    return calls + [m.content, done, last.message.content, last.finish_reason, [c.function.parsed_arguments.a for c in last.message.tool_calls]]


def chat_choice(to):
    client, saw = gpt(to), []
    for choice in ["required", {"type": "function", "function": {"name": "sub"}}]:
        c = chat(client, [said("a")], tools=CHAT_TOOLS, tool_choice=choice)
        saw += [[t.function.name, t.function.arguments, c.finish_reason] for t in c.message.tool_calls]
    return saw


def chat_stop(to):
    client, messages = gpt(to), [said("a")]
    first = chat(client, messages, stop=["STOP", "HALT"])
    second = chat(client, messages + [first.message, said("b")], max_tokens=3)
    return [first.message.content, first.finish_reason, second.message.content, second.finish_reason]


def chat_thoughts(to):
    client, messages = gpt(to), [said("a")]
    m = chat(client, messages).message
    messages += [m, said("b")]
    why = text = ""
    for chunk in client.chat.completions.create(model="policy", messages=messages, stream=True):
        for choice in whole(chunk).choices:
            why, text = why + getattr(choice.delta, "reasoning_content", ""), text + (choice.delta.content or "")
    return [m.reasoning_content, m.content, why, text]


def chat_errors(to):
    client = gpt(to)
    ask = lambda **options: lambda: chat(client, [said("a")], **options)
    return [
        raises(lambda: chat(gpt({**to, "key": "no"}), [said("a")]), "status_code", "code", "type"),
        raises(ask(response_format={"type": "json_object"}), "status_code", "code", "type"),
        raises(lambda: chat(client, [said("long " * 2000)]), "status_code", "code"),
        raises(lambda: client.embeddings.create(model="policy", input="a"), "status_code"),
        raises(lambda: chat(client, [said(" " * (33 << 20))]), "status_code"),
    ]


def chat_options(to):
    """n, seed, logprobs."""
    client = gpt(to)
    r = whole(client.chat.completions.create(model="policy", messages=[said("a")], n=3, logprobs=True, top_logprobs=2))
    same = [chat(client, [said("a")], seed=s).message.content for s in (7, 7, 8)]
    return [len({c.message.content for c in r.choices}), [c.index for c in r.choices], "".join(t.token for t in r.choices[1].logprobs.content)
            == r.choices[1].message.content, r.choices[0].logprobs.content[1].logprob, len(r.choices[2].logprobs.content[0].top_logprobs),
            same[0] == same[1], same[0] == same[2], total(r.usage)]


def completions(to):
    client = gpt(to)
    a = whole(client.completions.create(model="policy", prompt="once ", max_tokens=5, logprobs=1))
    text = "".join(c.choices[0].text for c in client.completions.create(model="policy", prompt="once " + a.choices[0].text + ", ", stream=True))
    b = whole(client.completions.create(model="policy", prompt=[104, 105], stop="."))
    return [a.choices[0].text, a.choices[0].finish_reason, a.choices[0].logprobs.tokens, text, b.choices[0].text, b.usage.total_tokens]


def models(to):
    return [whole(m).id for m in gpt(to).models.list()]


def responses_plain(to):
    r = respond(gpt(to), "a", instructions="be brief", max_output_tokens=50)
    cut = respond(gpt(to), [said("b")], max_output_tokens=3)
    assert r.usage.input_tokens + r.usage.output_tokens == r.usage.total_tokens
    return [r.output_text, r.status, r.usage.output_tokens, cut.output_text, cut.status, cut.incomplete_details.reason]


def responses_stream(to):
    client = gpt(to)
    text = "".join(whole(e).delta for e in client.responses.create(model="policy", input="a", stream=True) if e.type == "response.output_text.delta")
    with client.responses.stream(model="policy", input="b", tools=RESPONSE_TOOLS) as s:
        why = "".join(whole(e).delta for e in s if e.type == "response.reasoning_text.delta")
        last = whole(s.get_final_response())
    return [text, why, last.output_text, [x.type for x in last.output], last.output[-1].arguments, last.usage.output_tokens]


def responses_tools(to):
    """The whole conversation goes along, thoughts as well."""
    client, given = gpt(to), [said("a")]
    r = respond(client, given, tools=RESPONSE_TOOLS)
    given += r.output
    given += [{"type": "function_call_output", "call_id": x.call_id, "output": "3"} for x in r.output if x.type == "function_call"]
    end = respond(client, given, tools=RESPONSE_TOOLS)
    return [[x.type for x in r.output], r.output[0].content[0].text, r.output_text, r.output[-1].name, json.loads(r.output[-1].arguments), end.output_text]


def responses_previous(to):
    client = gpt(to)
    r = respond(client, "a", tools=RESPONSE_TOOLS)
    result = {"type": "function_call_output", "call_id": r.output[-1].call_id, "output": "3"}
    end = respond(client, [result], tools=RESPONSE_TOOLS, previous_response_id=r.id)
    more = respond(client, "b", tools=RESPONSE_TOOLS, previous_response_id=end.id)
    return [end.output_text, more.output_text]


def responses_choice(to):
    client, saw = gpt(to), []
    for choice in ["required", {"type": "function", "name": "sub"}]:
        call = respond(client, "a", tools=RESPONSE_TOOLS, tool_choice=choice).output[0]
        saw.append([call.name, call.arguments])
    return saw


def responses_errors(to):
    client = gpt(to)
    return [
        raises(lambda: respond(gpt({**to, "key": "no"}), "a"), "status_code", "code"),
        raises(lambda: respond(client, "a", tools=[{"type": "web_search"}]), "status_code", "type"),
        raises(lambda: respond(client, "long " * 2000), "status_code", "code"),
        raises(lambda: client.responses.retrieve("resp_1"), "status_code"),
    ]


async def together(call):
    return sorted(await asyncio.gather(*(call(i) for i in range(50))))


def chat_async(to):
    async def play():
        async with openai.AsyncOpenAI(base_url=to["url"] + "/v1", api_key=to["key"]) as client:
            async def one(i):
                r = await client.chat.completions.create(model="policy", messages=[said(f"<{i:02}>")])
                return [i, r.choices[0].message.content]
            return await together(one)
    return wait(play())


def messages_async(to):
    async def play():
        async with anthropic.AsyncAnthropic(base_url=to["url"], api_key=to["key"]) as client:
            async def one(i):
                r = await client.messages.create(model="any", max_tokens=50, messages=[said(f"<{i:02}>")])
                return [i, r.content[0].text]
            return await together(one)
    return wait(play())


def messages_plain(to):
    r = write(anthropic_at(to), [said("hi")], system="be brief")
    assert r.usage.input_tokens > 5
    return [r.content[0].text, r.stop_reason, r.model, r.role, r.usage.output_tokens]


def messages_stream(to):
    client = anthropic_at(to)
    with client.messages.stream(model="any", max_tokens=300, messages=[said("a")]) as s:
        text = "".join(s.text_stream)
        last = whole(s.get_final_message())
    raw = "".join(whole(e).delta.text for e in client.messages.create(model="any", max_tokens=50, messages=[said("b")], stream=True)
                  if e.type == "content_block_delta")
    assert last.usage.input_tokens > 5
    return [text, last.content[0].text, last.stop_reason, last.usage.output_tokens, raw]


def messages_tools(to):
    client, messages = anthropic_at(to), [said("a")]
    r = write(client, messages, tools=MESSAGE_TOOLS)
    use = r.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "3"}
    messages += [{"role": "assistant", "content": r.content}, said([result])]
    end = write(client, messages, tools=MESSAGE_TOOLS)
    messages += [{"role": "assistant", "content": end.content}, said("b")]
    with client.messages.stream(model="any", max_tokens=300, messages=messages, tools=MESSAGE_TOOLS) as s:
        last = s.get_final_message()
    return [r.content[0].text, use.name, use.input, r.stop_reason, end.content[0].text, end.stop_reason, last.content[-1].input, last.stop_reason]


def messages_runner(to):
    """The SDK's own loop over tools."""
    @anthropic.beta_tool
    def add(a: int) -> str:
        """Adds.

        Args:
            a: a number
        """
        return str(a + 2)

    runner = anthropic_at(to).beta.messages.tool_runner(model="any", max_tokens=300, messages=[said("a")], tools=[add])
    return [m.content[-1].type for m in runner] + [runner.until_done().content[0].text]


def messages_choice(to):
    client, saw = anthropic_at(to), []
    for choice in [{"type": "any"}, {"type": "tool", "name": "sub"}]:
        r = write(client, [said("a")], tools=MESSAGE_TOOLS, tool_choice=choice)
        saw.append([r.content[0].name, r.content[0].input, r.stop_reason])
    return saw


def messages_stop(to):
    client = anthropic_at(to)
    first = write(client, [said("a")], stop_sequences=["STOP", "HALT"])
    second = write(client, [said("a"), {"role": "assistant", "content": first.content}, said("b")])
    return [first.content[0].text, first.stop_reason, first.stop_sequence, second.content[0].text, second.stop_sequence]


def messages_thoughts(to):
    client, messages = anthropic_at(to), [said("a")]
    r = write(client, messages, thinking=THINK)
    messages += [{"role": "assistant", "content": r.content}, said("b")]
    with client.messages.stream(model="any", max_tokens=2000, messages=messages, thinking=THINK) as s:
        why = "".join(e.thinking for e in s if e.type == "thinking")
        last = whole(s.get_final_message())
    return [r.content[0].thinking, r.content[1].text, why, last.content[0].thinking, last.content[1].text]


def messages_errors(to):
    client = anthropic_at(to)
    kind = lambda call: (lambda r: [*r[:2], r[2]["error"]["type"]])(raises(call, "status_code", "body"))
    return [
        kind(lambda: write(anthropic_at({**to, "key": "no"}), [said("a")])),
        kind(lambda: write(client, [said("a")], tools=[{"type": "web_search_20250305", "name": "web_search"}])),
        kind(lambda: write(client, [said("long " * 2000)])),
        kind(lambda: client.messages.batches.retrieve("b")),
        kind(lambda: write(client, [said(" " * (33 << 20))])),
    ]


def count_tokens(to):
    client = anthropic_at(to)
    counted = whole(client.messages.count_tokens(model="any", messages=[said("a")], tools=MESSAGE_TOOLS)).input_tokens
    return [counted > 5, counted == write(client, [said("a")], tools=MESSAGE_TOOLS).usage.input_tokens]


def framework(to, use_responses, agent, stream=False):
    """A run of the OpenAI Agents SDK, and the names of its new items."""
    config = agents.RunConfig(model="policy", tracing_disabled=True, model_provider=agents.OpenAIProvider(
        base_url=to["url"] + "/v1", api_key=to["key"], use_responses=use_responses))

    async def play():
        if not stream:
            r = await agents.Runner.run(agent, "a", run_config=config)
            return [r.final_output, r.last_agent.name, [type(x).__name__ for x in r.new_items], r.context_wrapper.usage.output_tokens]
        r, text = agents.Runner.run_streamed(agent, "a", run_config=config), ""
        async for e in r.stream_events():
            if e.type == "raw_response_event" and e.data.type == "response.output_text.delta":
                text += e.data.delta
        return [r.final_output, r.last_agent.name, [type(x).__name__ for x in r.new_items], text]
    return wait(play())


@agents.function_tool
def weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


def caller():
    return agents.Agent(name="caller", instructions="Call.", tools=[weather])


def triage():
    other = agents.Agent(name="other", instructions="Answer.")
    return agents.Agent(name="triage", instructions="Hand over.", handoffs=[other])


def boss():
    clerk = agents.Agent(name="clerk", instructions="Work.", model="policy")
    return agents.Agent(name="boss", instructions="Ask.", tools=[clerk.as_tool("ask_clerk", "Asks the clerk.")])


def agents_responses(to): return framework(to, None, caller())
def agents_responses_stream(to): return framework(to, None, caller(), stream=True)
def agents_responses_handoff(to): return framework(to, None, triage())
def agents_responses_as_tool(to): return framework(to, None, boss())
def agents_chat(to): return framework(to, False, caller())
def agents_chat_stream(to): return framework(to, False, caller(), stream=True)
def agents_chat_handoff(to): return framework(to, False, triage())


def hasty(call):
    """An agent that asks once more where its stream broke."""
    try:
        return [None, call()]
    except Exception as e:
        return [type(e).__name__, call()]


def lost_chat(to): return chat(gpt(to), [said("a")]).message.content
def lost_responses(to): return respond(gpt(to), "a").output_text
def lost_messages(to): return write(anthropic_at(to), [said("a")]).content[0].text


def lost_chat_stream(to):
    return "".join(c.choices[0].delta.content or "" for c in gpt(to).chat.completions.create(model="policy", messages=[said("a")], stream=True))


def lost_messages_stream(to):
    with anthropic_at(to).messages.stream(model="any", max_tokens=300, messages=[said("a")]) as s:
        return s.get_final_text()


def broken_chat_stream(to): return hasty(lambda: lost_chat_stream(to))
def broken_messages_stream(to): return hasty(lambda: lost_messages_stream(to))
def slow_chat(to): return lost_chat(to)
def slow_messages(to): return lost_messages(to)
def dead_chat(to): return lost_chat(to)
def dead_messages(to): return lost_messages(to)
def bad_chat(to): return raises(lambda: chat(gpt(to), [said("a")], top_p=0), "status_code")
def bad_messages(to): return raises(lambda: write(anthropic_at(to), [said("a")], stop_sequences=[""]), "status_code")


def play(name, to):
    try:
        return globals()[name](to)
    except Exception:
        return traceback.format_exc()


scenarios = json.load(sys.stdin)
threading.Thread(target=LOOP.run_forever, daemon=True).start()
with concurrent.futures.ThreadPoolExecutor(len(scenarios)) as pool:
    print(json.dumps(dict(zip(scenarios, pool.map(play, scenarios, scenarios.values())))))
