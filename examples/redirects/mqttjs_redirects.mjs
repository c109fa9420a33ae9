// MQTT.js that follows MQTT 5 Server References, to servers that you list.
//
//     const client = connectFollowing("mqtt://gateway.example.org:1883", {follow: ["broker-a.example.org"]});
//     client.on("connect", () => client.subscribe("a/#"));
//
// MQTT.js ignores the references itself: it would connect to the gateway again, for ever. 0x9C holds for one connection,
// 0x9D for good. The transport stays, and with mqtts:// and wss:// the certificate of the new server must hold its name.

import mqtt from "mqtt";

const USE_ANOTHER_SERVER = 0x9c;
const SERVER_MOVED = 0x9d;

// Options are those of MQTT.js and: `follow`, the hosts or "host:port" to which the client may be sent (they get its
// login), and `hopsMax`, the references that are followed in a row.
export function connectFollowing(url, {follow = [], hopsMax = 3, ...options}) {
  const client = mqtt.connect(url, {
    ...options,
    protocolVersion: 5,
    reconnectOnConnackError: true,
    properties: {...options.properties, userProperties: {...options.properties?.userProperties, "server-reference": "follow"}},
  });
  const opened = new URL(url);
  const standard = {"mqtt:": 1883, "mqtts:": 8883, "ws:": 80, "wss:": 443}[opened.protocol];
  const gateway = {host: opened.hostname.replace(/^\[|\]$/g, ""), port: Number(opened.port || standard)};
  let home = gateway;
  let current = gateway;
  let given = null;
  let isMovingHome = false;
  let hops = 0;

  function dial(server) {
    current = server;
    // MQTT.js reads these at each attempt. A servername of the first server would be checked at the second one.
    Object.assign(client.options, {host: server.host, hostname: server.host, port: server.port});
    delete client.options.servername;
  }

  function allowed(word) {
    const bare = (word.match(/:/g) ?? []).length > 1 && !word.startsWith("[");
    const match = bare ? [word, word] : word.match(/^(\[[^\]]+\]|[^:]+)(?::(\d+))?$/);
    if (!match) return null;
    const host = match[1].replace(/^\[|\]$/g, "");
    const port = Number(match[2] ?? standard);
    return follow.includes(host) || follow.includes(`${host}:${port}`) ? {host, port} : null;
  }

  function move() {
    const reference = given;
    given = null;
    isMovingHome = false;
    if (reference && hops < hopsMax) {
      for (const word of reference.servers.split(" ").filter(Boolean)) {
        const server = allowed(word);
        if (server && !(server.host === current.host && server.port === current.port)) {
          hops += 1;
          isMovingHome = reference.code === SERVER_MOVED;
          dial(server);
          return;
        }
      }
    }
    hops = 0;
    dial(home);
  }

  client.on("packetreceive", (packet) => {
    if (packet.cmd !== "connack" && packet.cmd !== "disconnect") return;
    const servers = packet.properties?.serverReference;
    if (servers && (packet.reasonCode === USE_ANOTHER_SERVER || packet.reasonCode === SERVER_MOVED)) {
      given = {code: packet.reasonCode, servers};
    } else if (packet.cmd === "connack" && packet.reasonCode === 0 && isMovingHome) {
      home = current;
      isMovingHome = false;
    }
  });
  client.on("close", move);
  return client;
}
