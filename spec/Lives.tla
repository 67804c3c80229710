------------------------------- MODULE Lives -------------------------------
(* A node's life (life.py, functions/admin.lua): memory lost, announcement   *)
(* to Q others, quarantine, recovery of F from the same Q, open.             *)
(*                                                                           *)
(* A *server* is one memory of a node, its "life" in the code: server[n][l]  *)
(* is the l-th of node n. The first one is open from the beginning (the      *)
(* ensemble's birth). Restart makes the next one, which is empty; whether    *)
(* the old one is dead or goes on to answer, nobody can tell: as a ghost it  *)
(* takes every step that it could have taken before, and a request to the    *)
(* node may reach the one or the other. A ghost that never does anything     *)
(* again is a plain restart.                                                 *)
(*                                                                           *)
(* Time: `rest` is what is left of the quarantine, `left` what is left of    *)
(* the lock's entry. A module without time sets D = 0 and never reads        *)
(* `left`.                                                                   *)
EXTENDS Votes

CONSTANTS
  Mortal,     \* the nodes that may restart
  Replaced,   \* those of them that begin with an old server that still answers, and a new one
  MaxLives,   \* how many memories each of them may have had
  Restarts,   \* how many restarts there may be in all, that of `Replaced` included
  Ghosts,     \* the nodes whose old servers may still answer
  Numbers,    \* incarnations are chosen from 1..Numbers, as each life likes; 0: in order of birth
  D           \* the quarantine

VARIABLES
  server,     \* server[n][l]
  lives,      \* how many memories each node has had
  attempt     \* the candidates, whom nothing here touches

Life(n) == IF n \in Mortal THEN 1..MaxLives ELSE {1}

Newborn == [open |-> FALSE, number |-> 0, vector |-> Zero, told |-> Zero, learnt |-> {}, rest |-> 0,
            owner |-> Nobody, fence |-> 0, left |-> 0]

\* `Replaced` spares the search the way to a state that it would reach by itself.
LivesInit ==
  LET first    == [n \in Node |-> IF n \in Replaced THEN 2 ELSE 1]
      known == [p \in Node |-> first[p] - 1]
  IN
  /\ lives = first
  /\ server = [n \in Node |-> [l \in Life(n) |->
       IF l > first[n] THEN Newborn
       ELSE [Newborn EXCEPT !.open = TRUE, !.number = l - 1,
                            !.vector = IF l = first[n] THEN known ELSE Zero]]]

Answers(n, l) == l <= lives[n] /\ (n \in Ghosts \/ l = lives[n])
Open(n, l)    == Answers(n, l) /\ server[n][l].open

----------------------------------------------------------------------------

Lost == Cardinality({<<n, l>> \in Mortal \X (2..MaxLives) : l <= lives[n]})

Restart(n) ==
  /\ lives[n] < MaxLives /\ Lost < Restarts
  /\ lives' = [lives EXCEPT ![n] = @ + 1]
  /\ server' = [server EXCEPT
       ![n][lives[n] + 1].rest = IF Mutant = "announced last" THEN D ELSE 0,
       \* A dead memory is of no more interest, but its number is.
       ![n][lives[n]] = IF n \in Ghosts THEN @ ELSE [Newborn EXCEPT !.number = server[n][lives[n]].number]]
  /\ UNCHANGED attempt

Enough(S) == Cardinality(S) >= (IF Mutant = "one helper fewer" THEN Quorum - 1 ELSE Quorum)
Told(n, l) == {p \in Node : server[n][l].told[p] # 0}

\* Server l of n says to server m of p that it is n's k-th incarnation. Which k it begins with (the
\* code: one more than those it can ask have heard of) does not matter for safety: only that p takes
\* none that is not above all that it knows. A refusal means to begin again, with another one.
Accepts(p, m, n, k) == server[p][m].vector[n] < k

Announce(n, l, p, m) ==
  LET s == server[n][l]
      choices == IF s.number # 0 THEN {s.number} ELSE IF Numbers = 0 THEN {l - 1} ELSE 1..Numbers
  IN
  /\ p # n /\ Answers(n, l) /\ Answers(p, m) /\ ~s.open
  /\ s.told[p] # m
  /\ Mutant = "announced last" => s.rest = 0 /\ Enough(s.learnt)
  /\ \E k \in choices :
       IF Accepts(p, m, n, k)
       THEN server' = [server EXCEPT
              ![p][m].vector[n] = k,
              ![n][l].number = k, ![n][l].vector[n] = k, ![n][l].told[p] = m,
              ![n][l].learnt = IF Mutant = "announced last" THEN @ ELSE @ \ {p},
              ![n][l].rest = IF Mutant = "announced last" THEN @ ELSE D]
       ELSE /\ Numbers # 0 /\ s.number # 0
            /\ server' = [server EXCEPT
                 ![n][l].number = 0, ![n][l].told = Zero, ![n][l].learnt = {}]
  /\ UNCHANGED <<lives, attempt>>

\* Learns from server m of p, which is open, and is the memory that heard the announcement. (The code
\* writes it all at once when it has heard all of them; a closed node shows nobody what it knows.)
Learn(n, l, p, m) ==
  LET s == server[n][l]
      h == server[p][m]
  IN
  /\ p # n /\ Answers(n, l) /\ Open(p, m) /\ ~s.open
  /\ p \notin s.learnt /\ s.rest = 0
  /\ \/ s.told[p] = m /\ Enough(Told(n, l))
     \/ Mutant = "announced last" /\ s.number = 0
  /\ server' = [server EXCEPT
       ![n][l].learnt = @ \cup {p},
       ![n][l].fence = IF Mutant = "no recovery of F" THEN @ ELSE Max(@, h.fence),
       ![n][l].vector = [q \in Node |-> Max(@[q], h.vector[q])]]
  /\ UNCHANGED <<lives, attempt>>

\* A helper that was outranked by a later life of its own node is a ghost: what it does not know, the
\* later one may have voted for since. Without ghosts there is none.
IsGhost(n, l, p) ==
  /\ Mutant # "helpers not judged"
  /\ server[n][l].told[p] # 0
  /\ server[p][server[n][l].told[p]].number < server[n][l].vector[p]

BeginToVote(n, l) ==
  LET s == server[n][l] IN
  /\ Answers(n, l) /\ ~s.open /\ l > 1
  /\ Enough(s.learnt) /\ Enough(Told(n, l))
  /\ \A p \in s.learnt : ~IsGhost(n, l, p)
  /\ server' = [server EXCEPT ![n][l].open = TRUE, ![n][l].told = Zero, ![n][l].learnt = {}]
  /\ UNCHANGED <<lives, attempt>>

LivesNext ==
  \E n \in Mortal :
    \/ Restart(n)
    \/ \E l \in 2..MaxLives :
         \/ BeginToVote(n, l)
         \/ \E p \in Node \ {n} : \E m \in Life(p) : Announce(n, l, p, m) \/ Learn(n, l, p, m)
=============================================================================
