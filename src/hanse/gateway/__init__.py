"""The gateway: one address for all clients, which it proxies to a broker or redirects to it.

- `front`: the side of the clients: listeners, TLS, WebSocket, PROXY headers, limits, CONNECT.
- `brokers`: the side of the brokers: directory, health, dialling, drains.
- `placement`: the broker for a client, as a pure function that gives its reasons.
- `session`: one client's session across brokers, without IO.
- `model`: the TD-MQTT paper's equations.
"""
