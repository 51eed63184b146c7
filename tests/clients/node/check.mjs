// Runs the official client against a server and prints one JSON line per check: {"check", "ok", "detail"}.
//
// usage: node check.mjs BASE_URL MODEL      (with NODE_PATH or the working directory holding node_modules)
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [base, model] = process.argv.slice(2);
// The package lives in a build folder, not beside this file.
const resolved = createRequire(process.cwd() + "/").resolve("openai");
const { default: OpenAI } = await import(pathToFileURL(resolved));
const client = new OpenAI({ baseURL: base + "/v1", apiKey: "unused", maxRetries: 0, timeout: 30_000 });
const messages = [{ role: "user", content: "Say something." }];

async function rejects(type, call) {
  try {
    await call();
  } catch (e) {
    assert.equal(e.constructor.name, type.name);
    return e;
  }
  assert.fail("no " + type.name);
}

const unknown = { model: "no-such-model", messages, max_tokens: 4 };
const hot = { model, messages, max_tokens: 4, temperature: 17 };

const checks = {
  async models() {
    const names = [];
    for await (const m of client.models.list()) names.push(m.id);
    assert.ok(names.includes(model), names.join());
  },
  async model_one() {
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 8 });
    assert.equal(answer.object, "chat.completion");
    assert.equal(answer.choices.length, 1);
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 8);
  },
  async chat_stream() {
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
    });
    let text = "", usage, reasons = [];
    for await (const chunk of stream) {
      usage = chunk.usage ?? usage;
      for (const c of chunk.choices) {
        text += c.delta.content ?? "";
        if (c.finish_reason) reasons.push(c.finish_reason);
      }
    }
    assert.ok(text);
    assert.deepEqual(reasons, ["length"]);
    assert.equal(usage.completion_tokens, 8);
  },
  async chat_stream_helper() {
    const final = await client.chat.completions.stream({ model, messages, max_tokens: 8 }).finalChatCompletion();
    assert.ok(final.choices[0].message.content);
  },
  async chat_abort() {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 64, stream: true });
    for await (const _ of stream) break; // leaving the loop closes the connection
    await checks.chat();
  },
  async completion() {
    const answer = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8 });
    assert.equal(answer.object, "text_completion");
    assert.ok(answer.choices[0].text);
  },
  async completion_stream() {
    let text = "";
    const stream = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8, stream: true });
    for await (const chunk of stream) for (const c of chunk.choices) text += c.text;
    assert.ok(text);
  },
  async completion_batch() {
    const answer = await client.completions.create({ model, prompt: ["One", "Two"], max_tokens: 4 });
    assert.deepEqual(answer.choices.map((c) => c.index).sort(), [0, 1]);
  },
  async error_unknown_model() {
    await rejects(OpenAI.NotFoundError, () => client.chat.completions.create(unknown));
  },
  async error_unknown_model_stream() {
    await rejects(OpenAI.NotFoundError, () => client.chat.completions.create({ ...unknown, stream: true }));
  },
  async error_unknown_model_retrieve() {
    await rejects(OpenAI.NotFoundError, () => client.models.retrieve("no-such-model"));
  },
  async error_bad_value() {
    await rejects(OpenAI.BadRequestError, () => client.chat.completions.create(hot));
  },
  async error_fields() {
    const e = await rejects(OpenAI.BadRequestError, () => client.chat.completions.create(hot));
    assert.equal(e.param, "temperature");
    assert.equal(e.type, "invalid_request_error");
  },
};

for (const [name, check] of Object.entries(checks)) {
  const line = { check: name, ok: true, detail: "" };
  try {
    await check();
  } catch (e) {
    line.ok = false;
    line.detail = `${e.constructor.name}: ${e.message}`.slice(0, 600);
  }
  console.log(JSON.stringify(line));
}
