"""Every bound in `hanse.mqtt`: its unit, the effect of larger and smaller values, and a precedent."""

from typing import Final

# A publication of 16 MiB with 128 KiB for topic and properties. A smaller value refuses publications that brokers let
# pass (Mosquitto's default is 256 MiB). A larger one lets one peer hold that much memory per connection.
PACKET_BYTES_MAX: Final = 16 * 1024 * 1024 + 128 * 1024

# The limit of the protocol: four bytes of remaining length, and the fixed header (MQTT 5, 1.5.5 and 2.1.4).
REMAINING_LENGTH_MAX: Final = 268_435_455

# A CONNECT arrives before the peer is known, so its limit is lower: ids, a login, a will and some properties fit.
CONNECT_BYTES_MAX: Final = 256 * 1024

# Requested from the host broker. 65535 is the protocol's default; the codec omits it, and Mosquitto then uses its own
# value of 20. A smaller value lets fewer messages wait for custody.
RECEIVE_MAX: Final = 65_534

# Packet identifiers 1 to this are for PUBLISH, the rest for SUBSCRIBE and UNSUBSCRIBE. Neither can starve the other,
# and no search for a free identifier spans both.
PUBLISH_ID_MAX: Final = 64_511
SUBSCRIBE_ID_MIN: Final = PUBLISH_ID_MAX + 1
SUBSCRIBE_ID_MAX: Final = 65_535

# Properties of one PUBLISH that are parsed. A packet of 16 MiB could hold 3,000,000 and stop the loop for seconds.
# Mosquitto 2.0.12 fixed the same attack. Publications with more are dropped, counted and acknowledged.
PROPERTIES_MAX: Final = 1_000

# Filters in one SUBSCRIBE or UNSUBSCRIBE. Larger packets make one refusal cost more.
FILTERS_A_PACKET_MAX: Final = 64

# Filters wanted at one broker. The protocol bounds groups at the same number (`groups_max`).
FILTERS_MAX: Final = 1_000_000

# Longest path of a Unix socket: the capacity of the kernel's address, without the final zero (unix(7)).
SOCKET_PATH_BYTES_MAX: Final = 107

# QoS 1 and 2 publications held for one peer (in flight and queued), in number and bytes. Larger values hide a slow peer
# longer, smaller ones throttle at once.
HELD_PACKETS_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024

# Bytes that may wait in a transport before QoS 0 is dropped (NATS: 64 MiB pending per client; an edge box has less).
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024

# Unread bytes that a Unix socket may hold, as far as the machine's `net.core.wmem_max` allows. The default of 208 KiB
# is 17 publications of 10 KiB, and a writer of more must be woken again for the rest: 67 us of the federators' time per
# message, 55 us with this value. A larger value puts more data in front of urgent frames.
UNIX_SEND_BYTES: Final = 1024 * 1024

# Topics and property strings cached per connection, to save decoding them again. Without a bound, 100,000 distinct
# topics would stay for ever. A full cache is emptied.
REMEMBERED_MAX: Final = 16_384
REMEMBERED_BYTES_MAX: Final = 256

# Data of a link that may lie in its transport. Data beyond it waits where control frames can overtake it. A larger
# value delays announcements behind data, a smaller one costs throughput on fast, long paths.
LINK_TRANSPORT_BYTES: Final = 256 * 1024
LINK_CONTROL_BYTES_MAX: Final = 4 * 1024 * 1024
LINK_DATA_BYTES_MAX: Final = 64 * 1024 * 1024

# Limits of a listener: simultaneous connections, and the time that a peer has for its CONNECT.
CONNECTIONS_MAX: Final = 1_000
CONNECT_DEADLINE_S: Final = 10.0

# Unacknowledged frames per link. Custody holds acknowledgements back until the frames are acknowledged downstream, so
# this covers seconds at a thousand batch frames per second. The last identifiers are for control alone.
LINK_WINDOW: Final = 8_192
LINK_CONTROL_WINDOW: Final = 256

# Publications of QoS 1 and 2 in flight to a 3.1.1 broker, which cannot announce its limit. A larger value exceeds what
# a broker allows one client to leave unacknowledged, a smaller one costs throughput over long distances (NATS: 1,024 in
# the other direction).
V311_WINDOW: Final = 1_000
