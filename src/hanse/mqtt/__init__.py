"""MQTT connections in batches: what one read brings is one list, what one turn writes goes out at once.

MQTT 5, and 3.1.1 towards a broker that speaks no more.

The layers, each one file:

    limits        every number that bounds something
    refusal       what a peer did wrong, with the MQTT reason code that tells it so
    counters      what passed and what was dropped, by reason
    properties    the property table, and a walk over property bytes
    publication   PUBLISH packets as bytes: split, read, make canonical, patch identifiers and expiry
    framing       a byte stream split into packets
    codec         every other packet, by way of the `mqtt5` codec, guarded
    sending       one direction: packet identifiers, the window, the queue, retransmission, credit
    receiving     the other direction: withheld acknowledgements, QoS 2 without doubles
    subscriptions the set of filters that is wanted, and what has to be said to the broker to get there
    exchange      both directions over one stream of packets; still no sockets
    keepalive     when to ping, when to give a peer up
    connection    a transport: joined writes, keep-alive, an orderly end
    v311          MQTT 3.1.1 on the wire for a session that is MQTT 5 inside; survey: what such a broker can do
    client_ids    client ids that nobody can guess, and the record of them on disk
    client        one session at a broker, over all its reconnects (with backoff, tls, urls)
    listener      the server side up to CONNACK; server: what follows, for a gateway
    link          frames between two federators; endpoints: who dials, who listens
    memory        two connections joined without a network

Inside the federation a publication is the bytes of one whole PUBLISH packet in *canonical* form: DUP 0, packet
identifier 0 where QoS > 0, no subscription identifiers, no topic alias. A *run* is such packets, one after another.
"""
