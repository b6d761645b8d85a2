// Speaks @google/genai for the tests, in the same lines as sdk_agent.py. Run in the folder that holds the SDK.

import { createInterface } from "node:readline";
import { ApiError, GoogleGenAI } from "@google/genai";

const METHODS = {
  "caches.create": (client, given) => client.caches.create(given),
  "caches.get": (client, given) => client.caches.get(given),
  "caches.update": (client, given) => client.caches.update(given),
  "caches.delete": (client, given) => client.caches.delete(given),
  "caches.list": (client, given) => client.caches.list(given),
  "models.generate_content": (client, given) => client.models.generateContent(given),
  "models.generate_content_stream": (client, given) => client.models.generateContentStream(given),
  "models.count_tokens": (client, given) => client.models.countTokens(given),
  "models.get": (client, given) => client.models.get(given),
  "models.list": (client, given) => client.models.list(given),
};

function plain({ sdkHttpResponse, ...result }) {
  return result;
}

function typed(error) {
  if (!(error instanceof ApiError)) return { type: error.constructor.name, message: String(error.message) };
  const body = JSON.parse(error.message.slice(error.message.indexOf("{"))); // the SDK puts the body into its message
  const { message, status } = body.error;
  return { type: "ApiError", code: error.status, status, message, body };
}

async function answered({ client, operation, arguments: given, leaveAfter }) {
  const results = [];
  const leaving = new AbortController(); // to break off alone leaves the connection open
  if (leaveAfter) given.config.abortSignal = leaving.signal;
  try {
    const result = await METHODS[operation](new GoogleGenAI(client), given);
    if (Symbol.asyncIterator in result) {
      for await (const each of result) {
        results.push(plain(each));
        if (results.length === leaveAfter) break;
      }
      leaving.abort();
    } else {
      results.push(plain(result));
    }
  } catch (error) {
    return { results, error: typed(error) };
  }
  return { results };
}

process.stdout.write("ready\n");
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answered(JSON.parse(line))) + "\n");
}
