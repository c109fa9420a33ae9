"""Reading of the end of a log file."""

from hanse.interest.log_replay import replay

LOG = b"""\
1795060780: mosquitto version 2.0.11 starting
1795060781: New client connected from 127.0.0.1:1 as old (p2, c1, k60).
1795060781: old 1 old/#
1795060782: mosquitto version 2.0.11 terminating
1795060783: mosquitto version 2.0.11 starting
1795060784: New client connected from 127.0.0.1:1 as stays (p2, c1, k60).
1795060784: stays 1 a/#
1795060784: stays 2 b
1795060784: stays b
1795060785: New client connected from 127.0.0.1:2 as left (p2, c1, k60).
1795060785: left 1 a/#
1795060786: Client left disconnected.
1795060787: New client connected from 127.0.0.1:3 as kept (p2, c0, k60).
1795060787: kept 1 c
1795060788: Client kept disconnected.
1795060789: New client connected from 127.0.0.1:4 as five (p5, c1, k60).
1795060789: five 1 $share/g/d
1795060790: Client five disconnected.
1795060791: New client connected from 127.0.0.1:5 as hanse-1 (p5, c0, k60).
1795060791: hanse-1 1 $SYS/broker/log/#
1795060792: stays 1 unfinis"""


def test_subscriptions_since_the_last_start_are_found() -> None:
    held, has_start = replay(LOG, "hanse-")
    assert sorted(held) == [("five", "$share/g/d", 1), ("kept", "c", 1), ("stays", "a/#", 1)]
    assert has_start


def test_log_without_a_start_is_read_from_its_beginning() -> None:
    held, has_start = replay(LOG[LOG.rindex(b"1795060787") :], "hanse-")
    assert sorted(held) == [("five", "$share/g/d", 1), ("kept", "c", 1)]
    assert not has_start
    assert replay(b"", "hanse-") == ([], False)


def test_client_cannot_feign_a_start_of_the_broker() -> None:
    feigned = LOG + b"hed\n1795060793: x 1 mosquitto version 2 starting\n"
    assert len(replay(feigned, "hanse-")[0]) == len(replay(LOG, "hanse-")[0]) + 2
