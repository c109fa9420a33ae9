// MQTT.js as an actor: node mqttjs.cjs PATH_OF_MQTT URL VERSION
const [path, url, version] = process.argv.slice(2);
const mqtt = require(path);
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const v5 = version === "5";
let client;

function shown(topic, payload, packet) {
  const given = packet.properties || {};
  const properties = {};
  if (given.contentType) properties.content_type = given.contentType;
  if (given.responseTopic) properties.response_topic = given.responseTopic;
  if (given.correlationData) properties.correlation_data = given.correlationData.toString();
  if (given.payloadFormatIndicator) properties.payload_format = 1;
  if (given.userProperties) properties.user = Object.entries(given.userProperties);
  return { message: { topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties } };
}

function properties(given) {
  if (!v5 || !given) return undefined;
  return {
    contentType: given.content_type,
    responseTopic: given.response_topic,
    correlationData: Buffer.from(given.correlation_data),
    payloadFormatIndicator: true,
    messageExpiryInterval: 100,
    userProperties: Object.fromEntries(given.user),
  };
}

const commands = {
  connect(line) {
    client = mqtt.connect(url, {
      protocolVersion: version === "5" ? 5 : version === "3" ? 3 : 4,
      protocolId: version === "3" ? "MQIsdp" : "MQTT",
      clientId: line.id,
      clean: line.clean,
      reconnectPeriod: 0,
      will: line.will ? { topic: line.will.topic, payload: line.will.payload, qos: line.will.qos } : undefined,
      properties: v5 && !line.clean ? { sessionExpiryInterval: 600 } : undefined,
    });
    client.on("connect", (connack) => say({ did: "connect", present: connack.sessionPresent }));
    client.on("message", (topic, payload, packet) => say(shown(topic, payload, packet)));
    client.on("error", (error) => say({ error: String(error) }));
    client.on("close", () => say({ closed: true }));
  },
  subscribe(line) {
    client.subscribe(line.filter, { qos: line.qos }, (error, granted) =>
      say(error ? { error: String(error) } : { did: "subscribe", granted: granted[0].qos }));
  },
  publish(line) {
    const options = { qos: line.qos, retain: line.retain, properties: properties(line.properties) };
    client.publish(line.topic, line.payload, options, (error) =>
      say(error ? { error: String(error) } : { did: "publish" }));
  },
  disconnect() {
    client.end(false, {}, () => { say({ did: "disconnect" }); process.exit(0); });
  },
};

require("readline").createInterface({ input: process.stdin }).on("line", (text) => {
  const line = JSON.parse(text);
  commands[line.do](line);
});
