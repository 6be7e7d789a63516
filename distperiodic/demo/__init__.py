# SPDX-License-Identifier: Apache-2.0
"""A demonstration with real processes: ``distperiodic demo``.

Real processes share the objects of one periodic job. One process joins, one is
killed, and one is frozen and resumes later. The objects are the hosts of a
network, and the job pings each host every two seconds. The ping only sleeps,
so no network is needed.

    scene      the plan: each change of the group, and its time
    servers    the services that the processes share: files, or ZooKeeper,
               RabbitMQ and a database
    processes  the members: start, kill, freeze, thaw, end
    member     the program of one process
    pings      the job
    record     the record of each finished run, from which runs are counted
    account    the computation of the figures
    report     events and figures as lines of text
    picture    events and figures on the screen of a terminal
"""
