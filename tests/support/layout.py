"""What leaves its box in a page, and what is cut there."""

from __future__ import annotations

from tests.support.browser import Browser

_FOUND = """
const root = document.querySelector(arguments[0]);
const found = [];
const named = (node) => [node.localName, ...node.classList].join(".") + (node.id && `#${node.id}`);
const slack = 0.5;

// What a select shows is cut by itself, and its own widths do not tell.
function wished(select) {
  const copy = select.cloneNode(true);
  copy.style.cssText = "position: absolute; width: max-content; max-width: none; visibility: hidden";
  select.parentElement.append(copy);
  const width = copy.offsetWidth;
  copy.remove();
  return width;
}

for (const node of [root, ...root.querySelectorAll("*")]) {
  if (!node.checkVisibility() || node.closest(".unseen, .skip") || node.localName === "wbr") continue;
  if (node.parentElement?.closest("svg, select, .scroll")) continue;
  const style = getComputedStyle(node);
  if (node.matches(".scroll")) {
    const hint = style.backgroundAttachment.split(", ");
    if (node.scrollWidth > node.clientWidth && !(hint.includes("local") && hint.includes("scroll")))
      found.push(`${named(node)} can be scrolled, and nothing shows it`);
  } else if (node.clientWidth && node.scrollWidth > node.clientWidth) {
    found.push(`${named(node)} has ${node.clientWidth} px for ${node.scrollWidth}`);
  }
  if (node.matches("select") && wished(node) > node.offsetWidth + slack) found.push(`${named(node)} cuts an option`);
  if (node === root) continue;
  const [inner, outer] = [node, node.parentElement].map((one) => one.getBoundingClientRect());
  if (inner.left < outer.left - slack || inner.right > outer.right + slack)
    found.push(`${named(node)} leaves ${named(node.parentElement)}: ${inner.right} of ${outer.right}`);
}
return found;
"""

_BROKEN = """
const found = [];
for (const root of document.querySelectorAll(arguments[0])) {
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/[^\\s/-]+[/-]*/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push(word[0]);
    }
  }
}
return found;
"""


def overflows(browser: Browser, css: str) -> list[str]:
    """What is wrong in the element of a CSS selector at the present width. What lies in ``.scroll`` may scroll."""
    found: list[str] = browser.run(_FOUND, css)
    return found


def broken_words(browser: Browser, css: str) -> list[str]:
    """The words in elements of a CSS selector that go on in another line. Lines may end after a slash or a hyphen."""
    found: list[str] = browser.run(_BROKEN, css)
    return found
