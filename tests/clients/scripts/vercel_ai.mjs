// Vercel's AI SDK: texts, streams, objects, tools and embeddings, by OpenAI's two APIs and by Anthropic's.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, streamText, tool } from "ai";
import assert from "node:assert";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const compatible = createOpenAICompatible({ name: "ryzanstein", baseURL, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const anthropic = createAnthropic({ baseURL, apiKey: "none" });
const models = [compatible(model), openai.chat(model), openai.responses(model), anthropic(model)];
const short = { maxOutputTokens: 40, temperature: 0, maxRetries: 0 };
const long = { ...short, maxOutputTokens: 200 };
const fruit = z.object({ sweet: z.boolean() });

const cases = {
  async answers() {
    for (const one of models) {
      const found = await generateText({ model: one, prompt: "Name a fruit.", ...short });
      assert(found.text && found.usage.outputTokens > 0);
    }
  },
  async streams() {
    for (const one of models) {
      const found = streamText({ model: one, prompt: "Name a fruit.", ...short });
      let text = "";
      for await (const part of found.textStream) text += part;
      assert(text && text === (await found.text));
    }
  },
  async objects() {
    for (const one of models.slice(0, 3)) {
      const output = Output.object({ schema: fruit });
      const found = await generateText({ model: one, output, prompt: "An apple.", ...long });
      assert.strictEqual(typeof found.output.sweet, "boolean");
    }
  },
  async tools() {
    for (const one of models) {
      const tools = { judge: tool({ description: "Judges a fruit.", inputSchema: fruit, execute: async () => "yes" }) };
      const found = await generateText({ model: one, tools, toolChoice: "required", prompt: "An apple.", ...long });
      assert.strictEqual(found.toolCalls[0].toolName, "judge");
      assert.strictEqual(found.toolResults[0].output, "yes");
    }
  },
  async conversations() {
    for (const one of models) {
      const messages = [
        { role: "user", content: "Name a fruit." },
        { role: "assistant", content: "An apple." },
        { role: "user", content: [{ type: "text", text: "Another one." }] },
      ];
      assert((await generateText({ model: one, system: "Be short.", messages, ...short })).text);
    }
  },
  async embeddings() {
    const found = await embedMany({ model: compatible.textEmbeddingModel(model), values: ["An apple.", "A train."] });
    assert.strictEqual(found.embeddings.length, 2);
  },
};

for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(JSON.stringify({ case: name, ok: true }));
  } catch (error) {
    console.error(error);
    console.log(JSON.stringify({ case: name, ok: false, error: `${error.name}: ${error.message}`.slice(0, 500) }));
  }
}
