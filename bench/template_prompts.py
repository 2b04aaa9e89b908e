"""Prompts from templates: many kinds of questions about many topics, the same on every machine."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

_QUESTIONS = (
    "What is {topic}?",
    "How does {topic} work?",
    "Why does {topic} matter?",
    "Explain {topic}.",
    "Write about {topic}.",
    "What should I know about {topic}?",
    "Tell me the history of {topic}.",
    "Give an example that has to do with {topic}.",
    "Describe a day of somebody who works with {topic}.",
    "Write a story that begins with {topic}.",
    "Write a letter to a friend about {topic}.",
    "What are common mistakes about {topic}?",
    "How can I learn more about {topic}?",
    "What are the advantages and disadvantages of {topic}?",
    "Write an introduction to {topic}.",
    "List facts about {topic}.",
)
_STYLES = (
    "",
    " Answer in three sentences.",
    " Write for a child.",
    " Use simple words.",
    " Answer as a numbered list.",
    " Write for somebody who begins to learn.",
    " Be brief.",
    " Give reasons.",
)
_TOPICS = """
photosynthesis; the water cycle; gravity; volcanoes; earthquakes; the moon; the solar system; black holes; magnets;
electricity; batteries; solar power; wind energy; nuclear power; steam engines; bicycles; trains; airplanes; ships;
bridges; computers; programming; Python lists; sorting algorithms; databases; the internet; encryption; robots;
machine learning; spreadsheets; email; chess; football; swimming; yoga; running; sleep; nutrition; vitamins; sugar;
bread; cheese; chocolate; coffee; tea; cooking rice; gardening; compost; trees; rain forests; deserts; oceans; coral
reefs; whales; dolphins; penguins; bees; ants; spiders; dogs; cats; horses; birds; dinosaurs; fossils; evolution;
cells; the heart; the brain; the immune system; vaccines; antibiotics; first aid; teeth; eyes; the weather; clouds;
climate change; recycling; plastic; paper; glass; iron; gold; money; banks; inflation; taxes; insurance; budgets;
compound interest; marketing; small businesses; job interviews; meetings; teamwork; public speaking; writing essays;
poetry; novels; theatre; cinema; photography; painting; sculpture; jazz music; the piano; the violin; opera; dance;
ancient Egypt; the Roman Empire; the Middle Ages; the Renaissance; the printing press; the industrial revolution;
democracy; elections; courts; human rights; maps; mountains; rivers; islands; cities; villages; farming; fishing;
fractions; percentages; prime numbers; probability; triangles; graphs; statistics; clocks; calendars; languages;
grammar; translation; friendship; kindness; honesty; patience; stress; habits; goals; travel; camping; museums
"""
_HELD_OUT_TOPICS = """
thunderstorms; glaciers; telescopes; elevators; traffic lights; libraries; honey; olive oil; wolves; butterflies;
the kidneys; earthworms; bamboo; concrete; lighthouses; origami; origins of writing; the compass; decimals; volunteering
"""


def write_prompts(file: Path, count: int, *, held_out: bool) -> int:
    """Write up to `count` shuffled prompts and return their number; held-out prompts have separate topics."""
    topics = [topic.strip() for topic in (_HELD_OUT_TOPICS if held_out else _TOPICS).split(";")]
    texts = [
        question.format(topic=" ".join(topic.split())) + style
        for topic, question, style in itertools.product(topics, _QUESTIONS, _STYLES)
    ]
    random.Random(1).shuffle(texts)
    chosen = texts[:count]
    with file.open("w", encoding="utf-8") as rows:
        for number, text in enumerate(chosen):
            row = {"id": f"t{number}", "messages": [{"role": "user", "content": text}]}
            rows.write(json.dumps(row) + "\n")
    return len(chosen)
