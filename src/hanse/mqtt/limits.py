"""Every number in `hanse.mqtt` that bounds something: its unit, what larger and smaller do, a precedent."""

from typing import Final

# A publication of 16 MiB with 128 KiB for topic and properties. Smaller refuses what brokers let
# pass (Mosquitto's default is 256 MiB), larger lets one peer hold that much memory a connection.
PACKET_BYTES_MAX: Final = 16 * 1024 * 1024 + 128 * 1024

# What the protocol itself allows in four bytes of remaining length, and the fixed header (MQTT 5, 1.5.5 and 2.1.4).
REMAINING_LENGTH_MAX: Final = 268_435_455

# A CONNECT comes before anybody is known, so it gets less: ids, a login, a will and some properties fit.
CONNECT_BYTES_MAX: Final = 256 * 1024

# Asked of the host broker. 65535 is the protocol's default, which the codec leaves out and Mosquitto then takes as
# its own 20; smaller lets fewer messages wait for custody.
RECEIVE_MAX: Final = 65_534

# Packet identifiers 1 to this are for PUBLISH, the rest for SUBSCRIBE and UNSUBSCRIBE, so that neither starves the
# other and no search for a free one spans both.
PUBLISH_ID_MAX: Final = 64_511
SUBSCRIBE_ID_MIN: Final = PUBLISH_ID_MAX + 1
SUBSCRIBE_ID_MAX: Final = 65_535

# Properties of one PUBLISH that are walked; a 16 MiB packet could hold 3,000,000 and stop the loop for seconds.
# Mosquitto 2.0.12 fixed the same attack. More are dropped, counted and acknowledged.
PROPERTIES_MAX: Final = 1_000

# Filters in one SUBSCRIBE or UNSUBSCRIBE. Larger packets make one refusal cost more.
FILTERS_A_PACKET_MAX: Final = 64

# Filters wanted at one broker; the protocol bounds groups at the same number (`groups_max`).
FILTERS_MAX: Final = 1_000_000

# A Unix socket's path: what the kernel's address has room for, without its last zero (unix(7)).
SOCKET_PATH_BYTES_MAX: Final = 107

# QoS 1 and 2 publications held for one peer (in flight and queued), in number and bytes. Larger hides a slow peer
# longer, smaller throttles at once.
HELD_PACKETS_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024

# Bytes that may wait in a transport before QoS 0 is dropped (NATS: 64 MiB pending a client; an edge box has less).
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024

# What a Unix socket may hold unread, as far as the machine's `net.core.wmem_max` allows. Its default of 208 KiB is
# 17 publications of 10 KiB, and who writes more is woken again for the rest: 67 us of federators' time a message, 55
# with this. Larger puts more in front of what is urgent.
UNIX_SEND_BYTES: Final = 1024 * 1024

# Topics and property strings remembered a connection, to save decoding them again. 100,000 distinct topics would
# otherwise stay for ever; a full memory is emptied.
REMEMBERED_MAX: Final = 16_384
REMEMBERED_BYTES_MAX: Final = 256

# How much data of a link may lie in its transport; beyond it data waits where control can overtake it. Larger
# delays an announcement behind data, smaller costs throughput on fast, long paths.
LINK_TRANSPORT_BYTES: Final = 256 * 1024
LINK_CONTROL_BYTES_MAX: Final = 4 * 1024 * 1024
LINK_DATA_BYTES_MAX: Final = 64 * 1024 * 1024

# A listener's own: connections at once, and how long a peer may take for its CONNECT.
CONNECTIONS_MAX: Final = 1_000
CONNECT_DEADLINE_S: Final = 10.0

# Frames of a link that may be unacknowledged. Custody holds acknowledgements back for as long as the way downstream
# takes, so this covers seconds at a thousand batch frames a second. The last of them are for control alone.
LINK_WINDOW: Final = 8_192
LINK_CONTROL_WINDOW: Final = 256

# Publications of QoS 1 and 2 in flight to a 3.1.1 broker, which cannot say how many it takes. Larger overruns what a
# broker lets one client leave unacknowledged, smaller costs throughput on long ways (NATS: 1,024 the other way).
V311_WINDOW: Final = 1_000
