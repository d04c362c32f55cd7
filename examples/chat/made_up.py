"""Write made-up conversations, or tickets with a class: python examples/chat/made_up.py chats.jsonl [tickets.jsonl]"""

import json
import random
import sys
from pathlib import Path

THINGS = {
    "printer": ("is out of paper", "The key to the store room is at the desk."),
    "router": ("blinks red", "Unplug it, count to ten, and plug it in again."),
    "screen": ("stays dark", "Please try the other cable first."),
    "badge": ("does not open the door", "I have renewed it; give it five minutes."),
}
GREETINGS = ("Hello", "Good morning", "Hi there")


def conversations(customers: int = 120, seed: int = 0) -> list[dict]:
    """One to four conversations of each customer with one of five agents."""
    draw = random.Random(seed)
    found = []
    for customer in range(customers):
        for _ in range(draw.randint(1, 4)):
            thing = draw.choice(list(THINGS))
            wrong, answer = THINGS[thing]
            room = draw.randint(100, 399)
            turns = [
                ("user", f"{draw.choice(GREETINGS)}, the {thing} in room {room} {wrong}."),
                ("assistant", answer),
                ("user", draw.choice(("That worked, thank you.", "No, it is still the same."))),
                ("assistant", f"I will note that for room {room}."),
            ]
            found.append(
                {
                    "customer": f"customer{customer}",
                    "agent": f"agent{draw.randint(1, 5)}",
                    "messages": [{"role": role, "content": said} for role, said in turns],
                }
            )
    return found


def tickets(talks: list[dict]) -> list[dict]:
    """The first thing that each customer says, with the team that it is for."""
    teams = {"printer": "office", "badge": "office", "router": "network", "screen": "hardware"}
    found = []
    for talk in talks:
        text = talk["messages"][0]["content"]
        team = next(team for thing, team in teams.items() if thing in text)
        found.append({"customer": talk["customer"], "text": text, "team": team})
    return found


def write(rows: list[dict], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    made = conversations()
    write(made, Path(sys.argv[1]))
    if len(sys.argv) > 2:
        write(tickets(made), Path(sys.argv[2]))
