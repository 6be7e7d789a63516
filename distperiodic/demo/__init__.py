# SPDX-License-Identifier: Apache-2.0
"""The main job, to be looked at: ``distperiodic demo``.

Real processes share the objects of one periodic job. One joins, one is
killed, one is frozen and comes back. The objects are the hosts of a network
that are pinged every two seconds; the ping sleeps, so no network is needed.

    scene      what happens when
    servers    where they meet: files, or ZooKeeper and RabbitMQ
    processes  the members: start, kill, freeze, thaw, end
    member     one member, the program of such a process
    pings      the job
    record     what the handlers wrote down, the one source of all figures
    account    the figures
    report     both as lines of text
    picture    the screen of a terminal
"""
