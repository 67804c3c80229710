------------------------------- MODULE Votes -------------------------------
(* What a node answers (functions/vote.lua), and which answers count         *)
(* (quorum.py). No state: each function takes a node's entry for the one     *)
(* lock and says what becomes of it.                                         *)
(*                                                                           *)
(* An entry is [owner, fence]. Its owner is Nobody if there is none or its   *)
(* time is over. `keep` is whether the entry's time begins anew.             *)
(* CLOSED, TTL and EPOCH are no answer, as is a message that never arrives,  *)
(* so that they need no description of their own here.                       *)
EXTENDS Integers, FiniteSets

CONSTANTS
  Node,     \* the nodes that vote
  Quorum,   \* of the configured nodes, never of those that answered
  Nobody,
  Mutant    \* "none", or which protection is taken away

Max(x, y) == IF x > y THEN x ELSE y
Largest(S) == CHOOSE x \in S : \A y \in S : y <= x

Said(entry, status, fence) ==
  [owner |-> entry.owner, fence |-> entry.fence, keep |-> FALSE, status |-> status, said |-> fence]

Kept(id, fence, status, said) ==
  [owner |-> id, fence |-> fence, keep |-> TRUE, status |-> status, said |-> said]

----------------------------------------------------------------------------

\* `older`: the entry is an older attempt's of the same candidate.
GrantAt(entry, id, older, guess) ==
  CASE entry.owner # Nobody /\ ~older -> Said(entry, "HELD", 0)
    [] Mutant = "increment"           -> Kept(id, entry.fence + 1, "COMMITTED", entry.fence + 1)
    [] entry.fence < guess            -> Kept(id, guess, "COMMITTED", guess)
    [] OTHER                          -> Kept(id, entry.fence, "GRANTED", entry.fence)

CommitAt(entry, id, token) ==
  CASE entry.owner # id -> Said(entry, "NOTMINE", 0)
    [] entry.fence >= token /\ Mutant # "commit checks the owner only" -> Said(entry, "HIGH", 0)
    [] OTHER -> Kept(id, Max(entry.fence, token), "OK", 0)

RenewAt(entry, id, token) ==
  CASE entry.owner = Nobody /\ Mutant = "repair counts" -> Kept(id, Max(entry.fence, token), "OK", 0)
    [] entry.fence > token /\ Mutant # "renew ignores F" -> Said(entry, "HIGH", 0)
    [] entry.owner = id     -> Kept(id, Max(entry.fence, token), "OK", 0)
    [] entry.owner = Nobody -> Said(entry, "MISSING", 0)
    [] OTHER                -> Said(entry, "NOTMINE", 0)

AdoptAt(entry, id, token) ==
  CASE entry.owner # Nobody -> Said(entry, "NOTMINE", 0)
    [] entry.fence > token -> Said(entry, "HIGH", 0)
    [] OTHER -> Kept(id, Max(entry.fence, token), "OK", 0)

ReleaseAt(entry, id) ==
  IF entry.owner = id THEN [Said(entry, "OK", 0) EXCEPT !.owner = Nobody]
                      ELSE Said(entry, "GONE", 0)

----------------------------------------------------------------------------
(* A reply is [status, fence, number, vector]; the last two are the node's   *)
(* incarnation, and those of all nodes as far as it knows.                   *)

Zero    == [n \in Node |-> 0]
Slot(s) == [status |-> s, fence |-> 0, number |-> 0, vector |-> Zero]

\* Whether something was asked of a node, and what became of it.
Unsent == Slot("unsent")
Due    == Slot("due")       \* on its way, perhaps for ever; perhaps to arrive when nobody waits
Done   == Slot("done")      \* arrived, and its answer is of no use any more

IsReply(slot) == slot.status \notin {"unsent", "due", "done"}
Replied(slots) == {n \in Node : IsReply(slots[n])}

\* What a round leaves behind when it is decided: only what is still on its way.
Rest(slots) == [n \in Node |-> IF IsReply(slots[n]) THEN Done ELSE slots[n]]

\* Of the replies `slots` of the nodes R, those that count: a reply does not if any other one knows
\* a later incarnation of its node.
Counting(slots, R) ==
  IF Mutant = "no incarnations" THEN R
  ELSE {n \in R : \A m \in R : slots[m].vector[n] <= slots[n].number}

Saying(slots, R, statuses) == {n \in Counting(slots, R) : slots[n].status \in statuses}

HasQuorum(S) == Cardinality(S) >= Quorum
=============================================================================
