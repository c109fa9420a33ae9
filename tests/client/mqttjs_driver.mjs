// A client for the test: subscribes whenever it is connected, says what happens as lines of JSON, does what it reads.
import {connectFollowing} from "./mqttjs_redirects.mjs";

const [url, follow, topic] = process.argv.slice(2);
const say = (...words) => console.log(JSON.stringify(words));
const client = connectFollowing(url, {follow: follow.split(","), reconnectPeriod: 50});

client.on("connect", () => {
  const port = client.options.port;
  client.subscribe(topic, {qos: 1}, (error) => say(error ? "refused" : "subscribed", port));
});
client.on("message", (_, payload) => say("message", payload.toString()));
client.on("error", (error) => say("error", error.message));
process.stdin.on("data", (data) => {
  for (const line of data.toString().trim().split("\n")) {
    if (line === "cut") client.stream.destroy();
    else client.publish(topic, line, {qos: 1});
  }
});
process.stdin.on("end", () => process.exit(0));
