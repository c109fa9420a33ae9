"""MQTT connections in batches: the packets of one read are one list, and the writes of one turn leave at once.

The package speaks MQTT 5, and MQTT 3.1.1 to a broker that supports nothing newer.

The layers, one file each:

    limits        every bound, with its unit and reason
    refusal       violations by a peer, with the MQTT reason code that names each
    counters      counts of passed and dropped packets, by reason
    properties    the property table, and a parser of property bytes
    publication   PUBLISH packets as bytes: split, read, make canonical, patch identifiers and expiry
    framing       a byte stream split into packets
    codec         every other packet, through the `mqtt5` codec, guarded
    sending       one direction: packet identifiers, the window, the queue, retransmission, credit
    receiving     the other direction: withheld acknowledgements, QoS 2 without duplicates
    subscriptions the wanted filters, and the packets that bring the broker's session to them
    exchange      both directions over one stream of packets, still without sockets
    keepalive     the times to ping and to give a peer up
    connection    a transport: joined writes, keep-alive, an orderly end
    v311          MQTT 3.1.1 on the wire for a session that is MQTT 5 inside; survey: the traits of such a broker
    client_ids    client ids that nobody can guess, and the record of them on disk
    client        one session at a broker that outlives reconnects (with backoff, tls, urls)
    listener      the server side up to CONNACK; server: the rest, for a gateway
    link          frames between two federators; endpoints: the dialler and the listener
    memory        two connections joined without a network

Inside the federation, a publication is the bytes of one whole PUBLISH packet in *canonical* form: DUP 0, packet
identifier 0 if QoS > 0, no subscription identifiers, no topic alias. A *run* is a sequence of such packets.
"""
