// Elements of a page, made in one line.

// An element with properties and children; `properties` are those of the DOM, such as className and textContent.
export const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
